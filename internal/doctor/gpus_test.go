package doctor

import (
	"context"
	"strings"
	"testing"
)

// labSays makes the running gpulab answer so.
func labSays(lab Lab, err error) Options {
	return Options{Ask: func(context.Context) (Lab, error) { return lab, err }}
}

func TestGPUs(t *testing.T) {
	h := machine(t, nil)
	if found := look(t, h, "gpus", labSays(Lab{}, ErrNoDaemon)); len(found) != 0 {
		t.Errorf("without a lab: %v", found)
	}
	finds(t, h, "gpus", labSays(Lab{}, nil), OK, "no GPU")
	finds(t, h, "gpus", labSays(Lab{GPUs: []GPU{{Name: "H100"}, {Name: "H100", Index: 1}}}, nil), OK, "(2)")
	found := look(t, h, "gpus", labSays(Lab{GPUs: []GPU{
		{Name: "H100", Trouble: "GPU 0 has fallen off the bus."},
		{Name: "H100", Index: 1, Withheld: "A process outside gpulab uses it."},
	}}, nil))
	if len(found) != 2 || found[0].State != Fail || found[1].State != Warn || !strings.Contains(found[0].String(), "GPU 0 (H100)") || !strings.Contains(found[1].Mend, "`gpulab gpus lend 1`") {
		t.Errorf("got %v", found)
	}
}
