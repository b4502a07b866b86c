// Package bench measures gpulab: how long a start and a launch take, what the
// hub's proxy costs beside npm's, how much memory gpulab adds to Kubernetes.
// Its tests are built with the tag e2e, print figures rather than judge them,
// and are run by `go tool task bench` on a machine that does nothing else.
package bench
