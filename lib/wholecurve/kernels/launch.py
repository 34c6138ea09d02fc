"""One Triton launch as a value: the GPU runs it, the interpreter runs it, and the static compile reads it.

All three get the same arguments from one place, so a compiled or counted kernel is the launched kernel.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Launch:
    """kernel: a @triton.jit function. grid: programs per axis. arguments: positional, tensors, tensor descriptors
    and numbers. options: constexprs by name, num_warps and num_stages.
    """

    kernel: object
    grid: tuple
    arguments: tuple
    options: dict

    @property
    def name(self):
        """The kernel's function name."""
        return self.kernel.__name__

    @property
    def tensors(self):
        """Every tensor that the launch may touch, those behind tensor descriptors too."""
        held = [getattr(argument, "base", argument) for argument in self.arguments]
        return [argument for argument in held if hasattr(argument, "data_ptr")]

    @property
    def descriptors(self):
        """Whether tiles come through tensor descriptors."""
        return any(hasattr(argument, "block_shape") for argument in self.arguments)

    def run(self, interpreted):
        """Launch on the GPU, or in the interpreter when `interpreted`. An empty grid launches nothing."""
        if 0 in self.grid:
            return
        kernel = self.kernel
        if interpreted:
            # the interpreter belongs to profiling, which is not needed to run a kernel on a GPU
            from wholecurve.profiling.interpreter import interpret

            kernel = interpret(kernel)
        kernel[self.grid](*self.arguments, **self.options)


def run_all(launches, interpreted):
    """Run launches one after another; see `Launch.run`."""
    for launch in launches:
        launch.run(interpreted)
