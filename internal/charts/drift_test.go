package charts

import (
	"testing"

	"sigs.k8s.io/yaml"
)

// Only a live object that says all that a manifest does, word for word, is taken
// for the same without asking the API server.
func TestSaysAll(t *testing.T) {
	const live = `
metadata: {labels: {app: hub, helm: yes}}
spec:
  replicas: 1
  strategy: null
  ports: [{port: 80, protocol: TCP}, {port: 443, protocol: TCP}]
  cpu: 100m
`
	for manifest, want := range map[string]bool{
		`{}`:                               true,
		`{metadata: {labels: {app: hub}}}`: true,
		`{spec: {replicas: 1}}`:            true,
		`{spec: {ports: [{port: 80, protocol: TCP}, {port: 443, protocol: TCP}]}}`: true,
		`{spec: {ports: [{port: 80}, {port: 443}]}}`:                               false, // the rest may be defaults, or somebody's
		`{spec: {strategy: null}}`:                                                 true,
		`{metadata: {labels: {app: proxy}}}`:                                       false,
		`{metadata: {labels: {tier: hub}}}`:                                        false,
		`{spec: {replicas: 2}}`:                                                    false,
		`{spec: {replicas: "1"}}`:                                                  false,
		`{spec: {cpu: 0.1}}`:                                                       false, // the same, but it takes the API server to know
		`{spec: {ports: [{port: 80}]}}`:                                            false,
		`{spec: {ports: [{port: 443}, {port: 80}]}}`:                               false,
		`{spec: {ports: {port: 80}}}`:                                              false,
		`{spec: {replicas: {}}}`:                                                   false,
		`{spec: {paused: null}}`:                                                   false,
		`{data: {}}`:                                                               false,
	} {
		var a, b any
		if err := yaml.Unmarshal([]byte(live), &a); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(manifest), &b); err != nil {
			t.Fatal(err)
		}
		if got := saysAll(a, b); got != want {
			t.Errorf("%s: %t", manifest, got)
		}
	}
}
