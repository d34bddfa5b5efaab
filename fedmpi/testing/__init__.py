"""The contract of methods, for those who write one: `fedmpi.testing.check_method(MyMethod)`."""
from fedmpi.testing.report import ContractReport as ContractReport
from fedmpi.testing.report import check_method as check_method
