package main

import (
	"strings"
	"testing"
)

const (
	// k3sConf is the first plugin of the list k3s writes.
	k3sConf = `{"cniVersion":"1.0.0","name":"cbr0","type":"flannel",
		"delegate":{"hairpinMode":true,"forceAddress":true,"isDefaultGateway":true}}`
	someLease = "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.3.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
)

func TestDelegateTo(t *testing.T) {
	tests := []struct{ name, conf, want, wantErr string }{
		{
			name: "k3s",
			conf: k3sConf,
			want: `{"cniVersion":"1.0.0","forceAddress":true,"hairpinMode":true,"ipMasq":false,` +
				`"ipam":{"ranges":[[{"subnet":"10.42.3.0/24"}]],"routes":[{"dst":"10.42.0.0/16"}],"type":"host-local"},` +
				`"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}`,
		},
		{
			name: "its own values win, routes are added",
			conf: `{"cniVersion":"1.0.0","name":"n","ipam":{"dataDir":"/d","routes":[{"dst":"10.43.0.0/16"}]},
				"delegate":{"mtu":9000,"ipMasq":true,"isGateway":false,"bridge":"b0"}}`,
			want: `{"bridge":"b0","cniVersion":"1.0.0","ipMasq":true,` +
				`"ipam":{"dataDir":"/d","ranges":[[{"subnet":"10.42.3.0/24"}]],` +
				`"routes":[{"dst":"10.43.0.0/16"},{"dst":"10.42.0.0/16"}],"type":"host-local"},` +
				`"isGateway":false,"mtu":9000,"name":"n","type":"bridge"}`,
		},
		{
			name: "another delegate is no gateway; the call's own values are passed on",
			conf: `{"cniVersion":"1.0.0","name":"n","runtimeConfig":{"mac":"x"},"prevResult":{"ips":[]},"delegate":{"type":"ptp"}}`,
			want: `{"cniVersion":"1.0.0","ipMasq":false,` +
				`"ipam":{"ranges":[[{"subnet":"10.42.3.0/24"}]],"routes":[{"dst":"10.42.0.0/16"}],"type":"host-local"},` +
				`"mtu":1450,"name":"n","prevResult":{"ips":[]},"runtimeConfig":{"mac":"x"},"type":"ptp"}`,
		},
		{name: "no JSON", conf: `{`, wantErr: "read the flannel network configuration"},
		{name: "delegate with a name", conf: `{"delegate":{"name":"x"}}`, wantErr: `delegate's "name"`},
		{name: "delegate with addresses", conf: `{"delegate":{"ipam":{}}}`, wantErr: `delegate's "ipam"`},
		{name: "type is no name", conf: `{"delegate":{"type":3}}`, wantErr: "name of a plugin"},
		{name: "routes are no list", conf: `{"ipam":{"routes":"all"}}`, wantErr: "list of routes"},
	}
	l, err := parseLease(someLease)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := parseConf([]byte(test.conf))
			var d delegate
			if err == nil {
				d, err = c.delegateTo(l)
			}
			switch {
			case test.wantErr != "":
				if err == nil || !strings.Contains(err.Error(), test.wantErr) {
					t.Fatalf("error %v, want one about %q", err, test.wantErr)
				}
			case err != nil:
				t.Fatal(err)
			case string(d.json()) != test.want:
				t.Errorf("got  %s\nwant %s", d.json(), test.want)
			}
		})
	}
}
