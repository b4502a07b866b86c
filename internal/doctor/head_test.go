package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"testing"
)

func TestHead(t *testing.T) {
	h, opts := member(t)
	finds(t, h, "head", opts, Fail, "The head, gpu-one, does not answer at 192.0.2.1:8444 or 198.51.100.1:8444: no route to host.", "nobody reaches them", "`ping -c 3 192.0.2.1`")
	h.dial = closed("198.51.100.1:8444", "198.51.100.1:6443")
	finds(t, h, "head", opts, OK, "gpu-one, answers at 198.51.100.1:8444, and its Kubernetes at 198.51.100.1:6443")
	h.dial = closed("192.0.2.1:8444")
	finds(t, h, "head", opts, Fail, "is there, but does not answer at 192.0.2.1:6443", "no notebook starts here", "`gpulab doctor firewall`")
	h.dial = closed("192.0.2.1:6443")
	finds(t, h, "head", opts, Fail, "is there, but does not answer at 192.0.2.1:8444", "shows this machine as lost")
	h.dial = closed("192.0.2.1:6443", "192.0.2.1:8444")
	opts.Joined.Greet = func(context.Context) (Greeting, error) {
		return Greeting{}, &tls.CertificateVerificationError{Err: errors.New("signed by unknown authority")}
	}
	finds(t, h, "head", opts, Fail, "but not as the head of this machine's pool", "`gpulab leave`")
	if found := look(t, h, "headclock", opts); found != nil {
		t.Errorf("without an answer the clock is compared: %v", found)
	}
}
