# SQLite hangs on homes that are mounted over the network.
c.HistoryManager.hist_file = "/tmp/.gpulab/jupyter/history.sqlite"  # noqa: F821
