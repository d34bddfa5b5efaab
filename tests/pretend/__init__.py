"""A simulated GPU for tests on machines without one: `with pretend() as books: ...`.

Tensors are stored and computed on the CPU, but carry a mark for where they would be: on the GPU, on the host, or in
pinned memory of the host. Code that asks for the device gets this place. What CUDA refuses is refused: to mix devices,
to read a GPU's numbers through NumPy, to synchronise while a stream is captured. What CUDA does slowly and silently is
counted in the books, with the line of this project that asked for it: waits of the host for the GPU, copies that are
asynchronous in name only, kernels that add up in any order. CUDA graphs are really recorded: a capture changes nothing,
and a replay performs only the recorded operations, on the recorded memory.

It cannot show kernels and their bits, streams that overtake each other, how much memory there is, and times."""
from tests.pretend.books import Books
from tests.pretend.cuda import pretend
from tests.pretend.marks import GPU, on_gpu

__all__ = ["GPU", "Books", "on_gpu", "pretend"]
