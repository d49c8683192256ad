# A matplotlib backend that writes files: show() saves each open figure as plot-N.png in the working directory.
import os
from matplotlib._pylab_helpers import Gcf
from matplotlib.backends.backend_agg import FigureCanvasAgg as FigureCanvas  # noqa: F401
from matplotlib.backend_bases import FigureManagerBase as FigureManager  # noqa: F401


def show(*args, **kwargs):
    n = 1
    for manager in Gcf.get_all_fig_managers():
        while os.path.exists(f"plot-{n}.png"):
            n += 1
        manager.canvas.figure.savefig(f"plot-{n}.png")
    Gcf.destroy_all()
