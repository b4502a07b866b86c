# Settings of the notebook server that hold for everybody.
# ruff: noqa: F821
import gpulab_home

scratch = "/tmp/.gpulab/jupyter"

# SQLite hangs on homes that are mounted over the network. What is lost at a
# stop: which notebooks were marked as trusted, and IDs that only live tabs use.
c.NotebookNotary.db_file = f"{scratch}/nbsignatures.db"
c.NotebookNotary.secret_file = f"{scratch}/notebook_secret"  # a home may be full
c.BaseFileIdManager.db_path = f"{scratch}/file_id_manager.db"
c.SQLiteYStore.db_path = f"{scratch}/ystore.db"

# What is deleted goes to a trash (see gpulab_trash); JupyterLab asks accordingly.
c.FileContentsManager.delete_to_trash = True

# Widgets of the lab's environments are drawn by extensions that come with their packages.
c.LabApp.extra_labextensions_path = gpulab_home.extensions_of_environments()

# Nothing calls home: no news, no check for updates. Extensions are part of the
# image, which nobody can write to, so JupyterLab does not offer to install any.
c.LabApp.extension_manager = "readonly"
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"

# What cells print while no browser is there is kept (see gpulab_outputs).
c.ServerApp.contents_manager_class = "gpulab_outputs.Contents"
c.ServerApp.kernel_manager_class = "gpulab_outputs.Kernels"
c.ServerApp.kernel_websocket_connection_class = "gpulab_connection.Connection"

# A cell with pasted data, or an upload widget, sends all of it in one message. It
# takes many times its size while it is passed on, so the bound follows the memory
# that the notebook has. The page is told the bound (see gpulab_home).
c.ServerApp.tornado_settings = {"websocket_max_message_size": gpulab_home.largest_message()}

# Courses on git need .gitignore and .env: "View", "Show Hidden Files".
c.ContentsManager.allow_hidden = True

# Kernels of homes that cannot start do not stand in the way of the image's.
c.ServerApp.kernel_spec_manager_class = "gpulab_home.KernelSpecs"

# The export menu offers what works: these want Pandoc, TeX or a browser. A PDF is
# printed by the person's own browser.
for exporter in ("ASCIIDoc", "Latex", "PDF", "QtPDF", "QtPNG", "RST", "WebPDF"):
    c[f"{exporter}Exporter"].enabled = False
