package gpu

// desktopMemory is what one program of a desktop session may take of a GPU
// without occupying it: a compositor with 4K screens takes some 500 MB, a
// browser some 900 MB.
const desktopMemory = 1 << 30 // bytes

// mpsServer is NVIDIA's Multi-Process Service. It runs as the user whose programs
// it passes on, which have entries of their own, and keeps some 30 MB itself
// (docs.nvidia.com/deploy/mps). The kernel cuts its name, nvidia-cuda-mps-server,
// to 15 characters.
const mpsServer = "nvidia-cuda-mps"

// Outsiders are the processes that occupy the GPU from outside the cluster. Left
// out are programs that take little memory and merely draw, as a desktop
// session's do, or are the server of NVIDIA's Multi-Process Service.
func (g *GPU) Outsiders() []Process {
	var outsiders []Process
	for _, p := range g.Processes {
		little := p.MemoryUsed != nil && *p.MemoryUsed <= desktopMemory
		harmless := little && (p.Graphics || p.Name == mpsServer)
		if p.Pod == (PodRef{}) && p.UnixUser != "" && !harmless {
			outsiders = append(outsiders, p)
		}
	}
	return outsiders
}
