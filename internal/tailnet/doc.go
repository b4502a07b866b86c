// Package tailnet makes a lab a machine of a tailnet, by tailscale's tsnet inside the process: without a daemon, a
// network interface or a right of its own. It serves the lab's doors there, has the tailnet's certificate for them, and
// says who visits. What a visitor may is decided elsewhere.
//
// Nothing is sent to anybody before somebody has turned it on, and no logs ever.
//
// Only cmd/gpulab and tests may import it.
package tailnet
