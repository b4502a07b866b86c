// Package bench measures gpulab: how long a start and a launch take, how much
// memory gpulab adds to Kubernetes, how it does when everybody comes at once, how soon the line for GPUs decides, and
// what a week brings to a lab by who decides about its GPUs ([test/bench/week]). [test/bench/proxy] does the same for
// the hub's proxy, [test/bench/sampling] for the watching of GPUs, [test/bench/stream] for the hearing of machines.
//
// Its tests are built with the tag e2e, print figures rather than judge them,
// and are run by `go tool task bench` on a machine that does nothing else.
package bench
