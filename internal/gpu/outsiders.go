package gpu

// desktopMemory is what one program of a desktop session may take of a GPU
// without occupying it: a compositor with 4K screens takes some 500 MB, a
// browser some 900 MB.
const desktopMemory = 1 << 30 // bytes

// mpsServer passes on the work of others, whose processes have entries of their
// own; without any it keeps some 30 MB of the GPU. The kernel cuts its name,
// nvidia-cuda-mps-server, to 15 characters.
const mpsServer = "nvidia-cuda-mps"

// Outsiders are the processes that occupy the GPU from outside the cluster. Left
// out are a desktop session's programs, which draw and take little memory, and
// the machine's server of NVIDIA's Multi-Process Service.
func (g *GPU) Outsiders() []Process {
	var outsiders []Process
	for _, p := range g.Processes {
		desktop := p.Graphics && p.MemoryUsed != nil && *p.MemoryUsed <= desktopMemory
		server := p.Name == mpsServer && p.UnixUser == "root"
		if p.Pod == (PodRef{}) && p.UnixUser != "" && !desktop && !server {
			outsiders = append(outsiders, p)
		}
	}
	return outsiders
}
