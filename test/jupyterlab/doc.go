// Package jupyterlab has the tests of JupyterLab as the notebook image has it:
// the image's locks, scripts and settings with a real Chromium, without the
// image and without a lab.
package jupyterlab
