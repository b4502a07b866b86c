package doctor

import (
	"testing"
)

func TestStream(t *testing.T) {
	h, opts := member(t)
	says := func(p Part) { opts.Ask = labSays(Lab{Parts: []Part{p, {Name: "k3s", State: OK}}}, nil).Ask }
	says(Part{Name: "head", State: OK, Detail: "gpu-one at 192.0.2.1, connected for 5 s"})
	finds(t, h, "stream", opts, OK, "connected for 5 s")
	finds(t, h, "components", opts, OK)
	says(Part{Name: "head", State: Warn, Detail: "the head has said nothing for 10s"})
	finds(t, h, "stream", opts, Fail, "said nothing for 10s", "`gpulab doctor head`")
	finds(t, h, "components", opts, OK)
	says(Part{Name: "head", State: Starting})
	finds(t, h, "stream", opts, Warn, "no connection to the head yet")
}
