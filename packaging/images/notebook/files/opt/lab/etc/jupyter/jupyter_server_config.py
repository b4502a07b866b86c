# Settings of the notebook server that hold for everybody.
# ruff: noqa: F821
scratch = "/tmp/.gpulab/jupyter"

# SQLite hangs on homes that are mounted over the network. What is lost at a
# stop: which notebooks were marked as trusted, and IDs that only live tabs use.
c.NotebookNotary.db_file = f"{scratch}/nbsignatures.db"
c.BaseFileIdManager.db_path = f"{scratch}/file_id_manager.db"
c.SQLiteYStore.db_path = f"{scratch}/ystore.db"

# A home has no trash that anything would ever empty: deleted is deleted.
c.FileContentsManager.delete_to_trash = False

# Nothing calls home: no news, no check for updates. Extensions are part of the
# image, which nobody can write to, so JupyterLab does not offer to install any.
c.LabApp.extension_manager = "readonly"
c.LabApp.news_url = None
c.LabApp.check_for_updates_class = "jupyterlab.NeverCheckForUpdate"

# What cells print while no browser is there is kept (see gpulab_outputs).
c.ServerApp.contents_manager_class = "gpulab_outputs.Contents"
c.ServerApp.kernel_manager_class = "gpulab_outputs.Kernels"
c.ServerApp.kernel_websocket_connection_class = "gpulab_outputs.Connection"
