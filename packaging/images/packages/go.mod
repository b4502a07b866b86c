module github.com/gpulab/gpulab/packaging/images/packages

go 1.26.0
