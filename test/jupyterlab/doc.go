// Package jupyterlab tests the notebook image's JupyterLab in Chromium. It installs what the image's locks name, and
// uses the image's scripts and settings, but needs neither the image nor a lab.
package jupyterlab
