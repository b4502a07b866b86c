package webui

import "net/http"

// designPage shows every component in every state, with made-up values.
func (s *Server) designPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	s.render(w, r, http.StatusOK, designPage(s.page(w, r, v, "Design system", ""), exampleReadings()))
	return nil
}

// exampleReadings covers a reading's states: a meter, a warning, a curve with a
// gap, and a value the GPU does not tell.
func exampleReadings() []reading {
	part := func(f float64) *float64 { return &f }
	return []reading{
		{Name: "Use", Value: "37", Unit: "%", Fraction: part(0.37)},
		{Name: "Memory", Value: "38.9", Unit: "GiB", Of: "of 40.0 GiB", Fraction: part(0.97), High: true},
		{Name: "Power", Value: "212", Unit: "W", Of: "of 400 W", Drawing: &drawing{Lines: []string{
			"4,36 16,30 28,31 40,18 52,16 64,17 76,16 88,20 100,18", "124,20 136,12 148,10 160,11 172,10 184,12 196,22 " +
				"208,24 220,20 240,19"}}},
		{Name: "Temperature", Unit: "°C", Drawing: &drawing{}},
	}
}

var exampleSteps = []stepView{
	{"done", "Place in the queue", "A GPU is free.", "0 s"},
	{"done", "Your space (namespace)", "", "1 s"},
	{"active", "Software (image)", "Unpacking: 310 of 520 MiB", "4 s"},
	{"failed", "Container (pod)", "The machine has no memory left for it.", "2 s"},
	{"waiting", "JupyterLab (server)", "", ""},
}

var exampleGPUs = []gpuView{
	{ID: "example-free", Name: "NVIDIA A100-SXM4-40GB", Index: 0, Simulated: true, Readings: exampleReadings()},
	{ID: "example-held", Name: "NVIDIA A100-SXM4-40GB", Index: 1, Readings: exampleReadings(),
		Holders: []holderView{{User: "ada", Notebook: "gpu", For: "12 min"}}},
	{ID: "example-stale", Name: "NVIDIA L4", Index: 2, Readings: exampleReadings(), LastSeen: "last seen 42 s ago",
		Outside: []string{"root"}},
	{ID: "example-broken", Name: "NVIDIA L4", Index: 3, Problem: "The driver lost this GPU (XID 79). Restart the " +
		"machine; if it comes back, the card is failing."},
}
