package assets

import _ "embed"

//go:embed grafana/gpulab.json
var dashboard []byte

// Dashboard returns the dashboard that Grafana imports. The caller must not
// change it.
func Dashboard() []byte { return dashboard }
