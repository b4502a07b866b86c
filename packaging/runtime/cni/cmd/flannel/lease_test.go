package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseLease(t *testing.T) {
	tests := []struct {
		name, text string
		want       string // the lease printed, or
		wantErr    string // what the error says
	}{
		{
			name: "as k3s writes it",
			text: "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n",
			want: "[10.42.0.0/16] [10.42.3.0/24] 1450 true",
		},
		{
			name: "both families, blank line, unknown variable",
			text: "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\n\nFLANNEL_IPV6_NETWORK=fd00:42::/56\n" +
				"FLANNEL_IPV6_SUBNET=fd00:42:0:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\nFLANNEL_NEW=1",
			want: "[10.42.0.0/16 fd00:42::/56] [10.42.0.0/24 fd00:42:0:1::/64] 1430 false",
		},
		{
			name: "several networks",
			text: "FLANNEL_NETWORK=10.42.0.0/16,10.43.0.0/16\nFLANNEL_SUBNET=10.42.0.1/24\n",
			want: "[10.42.0.0/16 10.43.0.0/16] [10.42.0.0/24] 0 false",
		},
		{name: "empty", text: "", wantErr: "no FLANNEL_SUBNET"},
		{name: "cut off", text: "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.4", wantErr: "FLANNEL_SUBNET: "},
		{name: "no number", text: "FLANNEL_SUBNET=10.42.0.1/24\nFLANNEL_MTU=big", wantErr: "FLANNEL_MTU: "},
		{name: "no truth", text: "FLANNEL_SUBNET=10.42.0.1/24\nFLANNEL_IPMASQ=", wantErr: "FLANNEL_IPMASQ: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseLease(test.text)
			if test.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("error %v, want one about %q", err, test.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if s := fmt.Sprint(got.networks, got.subnets, got.mtu, got.masks); s != test.want {
				t.Errorf("got  %s\nwant %s", s, test.want)
			}
		})
	}
}
