package gpu

// desktopMemory is what one program of a desktop session may take of a GPU
// without occupying it: a compositor with 4K screens takes some 500 MB, a
// browser some 900 MB.
const desktopMemory = 1 << 30 // bytes

// Outsiders are the processes that occupy the GPU from outside the cluster. A
// desktop session's programs, which draw and take little memory, are left out.
func (g *GPU) Outsiders() []Process {
	var outsiders []Process
	for _, p := range g.Processes {
		desktop := p.Graphics && p.MemoryUsed != nil && *p.MemoryUsed <= desktopMemory
		if p.Pod == (PodRef{}) && p.UnixUser != "" && !desktop {
			outsiders = append(outsiders, p)
		}
	}
	return outsiders
}
