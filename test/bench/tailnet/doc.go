// Package tailnet measures what a lab's tailnet costs: how fast a download and a notebook's WebSocket are over it,
// beside the plain listener of the same process, and how much memory and processor time it takes while nobody comes.
package tailnet
