// Package notebooks runs the lab's notebooks: it keeps a launch as a row from
// the click to the end, starts and stops servers through the Hub API, and is
// the proxy between browsers, JupyterHub and the notebooks.
//
// # Launches
//
// [Service] owns the table launches. A launch waits until the cluster has room,
// is started through the hub, runs, and ends with a reason in plain words.
// Waiting, order and cancelling are gpulab's own and outlive every restart; the
// hub is called only when the resources are there. What the cluster does is
// read from a watch ([KubeCluster]); nothing is believed because it was asked
// for.
//
// # The proxy
//
// [Proxy] answers the REST API of configurable-http-proxy, so that JupyterHub
// takes it for its own proxy, and forwards the traffic of the notebooks'
// origin. It trusts the hub for one fact only, that a server exists. Who may
// come in is decided by gpulab's session, and where a request goes by gpulab's
// own watch of the pods: an address in a hub's route may belong to somebody
// else's pod by now.
//
// cmd/gpulab wires the package; webui and ctl use it through interfaces of
// their own. It imports store only in tests and users for its types.
package notebooks
