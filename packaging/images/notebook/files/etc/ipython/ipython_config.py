import glob
import os
import sys

# SQLite hangs on homes that are mounted over the network.
c.HistoryManager.hist_file = "/tmp/.gpulab/jupyter/history.sqlite"  # noqa: F821

# Matplotlib's settings for everybody. A person's own come first: those in the working folder
# anyway, those in the home here.
if not os.path.exists(os.path.expanduser("~/.config/matplotlib/matplotlibrc")):
    os.environ.setdefault("MATPLOTLIBRC", "/etc/ipython/matplotlibrc")

# ZeroMQ drops what a kernel prints while the server is behind by more than this many
# messages; its own bound is 1000.
if "ipykernel.kernelapp" in sys.modules:
    import zmq
    from ipykernel.kernelapp import IPKernelApp

    def _init_iopub(self, context, _init=IPKernelApp.init_iopub):
        context.setsockopt(zmq.SNDHWM, 100_000)
        _init(self, context)

    IPKernelApp.init_iopub = _init_iopub

# Where an import fails because the home has the package for another Python, the traceback says so.
if sys.prefix == "/usr":
    import site

    from IPython.core.interactiveshell import InteractiveShell

    def _showtraceback(self, exc_tuple=None, *args, _show=InteractiveShell.showtraceback, **kwargs):
        error = (exc_tuple or sys.exc_info())[1]
        name = isinstance(error, ModuleNotFoundError) and error.name
        if name and "." not in name:  # with a dot, its package is there
            for folder in glob.glob(os.path.expanduser("~/.local/lib/python3.*/site-packages")):
                there = os.path.join(glob.escape(folder), glob.escape(name))
                if folder != site.getusersitepackages() and (glob.glob(there) or glob.glob(there + ".*")):
                    error.add_note(f"Your home has {name} for another Python. To see which packages to install again, run: !use-python")
                    break
        _show(self, exc_tuple, *args, **kwargs)

    InteractiveShell.showtraceback = _showtraceback
