"""What type checkers and editors know of `import fedmpi`: the names that __init__.py loads when they are first used."""
from fedmpi.errors import BadInput as BadInput
from fedmpi.errors import FedmpiError as FedmpiError
from fedmpi.errors import GivenUp as GivenUp
from fedmpi.method import Method as Method
from fedmpi.python_api import list_methods as list_methods
from fedmpi.python_api import load_result as load_result
from fedmpi.python_api import plan as plan
from fedmpi.python_api import run as run
from fedmpi.python_api import sweep as sweep
from fedmpi.result import Result as Result

__version__: str
__all__ = [
    "BadInput", "FedmpiError", "GivenUp", "Method", "Result", "list_methods", "load_result", "plan", "run", "sweep"]
