"""A pretended GPU, for tests on machines without one: `with pretend() as books: ...`.

Tensors live on the CPU and are computed there, but carry a mark for where they would lie: on the GPU, on the host, or
in pinned memory of the host. Code that asks is told so. What CUDA would refuse is refused: to mix devices, to look at
a GPU's numbers through NumPy, to synchronise while a stream is captured. What CUDA would do slowly and silently is
entered in the books with the line of ours that asked for it: a host that waits for the GPU, a copy that is asynchronous
in name only, a kernel that adds up in any order. CUDA graphs are recorded for real: a capture changes nothing, and a
replay performs the recorded operations alone, on the recorded memory.

What it cannot show: kernels and their bits, streams that overtake each other, how much memory there is, seconds."""
from tests.pretend.books import Books
from tests.pretend.cuda import pretend
from tests.pretend.marks import GPU, on_gpu

__all__ = ["GPU", "Books", "on_gpu", "pretend"]
