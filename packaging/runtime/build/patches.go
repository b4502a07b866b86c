package main

import "github.com/gpulab/gpulab/packaging/gobuild"

// Links and addresses come and go all the time on a node, with every pod. When
// that happens while the kernel lists them, it marks the list as interrupted,
// and netlink says so with an error. k3s ends as a whole when that meets its
// network policies as they start. The same question is asked again instead.
var interruptedDumps = gobuild.Patch{
	Module: "github.com/vishvananda/netlink",
	File:   "nl/nl_linux.go",
	From: `	var res [][]byte
	err := req.ExecuteIter(sockType, resType, func(msg []byte) bool {
		res = append(res, msg)
		return true
	})
`,
	To: `	var res [][]byte
	var err error
	for try := 0; try < 20; try++ {
		res = nil
		err = req.ExecuteIter(sockType, resType, func(msg []byte) bool {
			res = append(res, msg)
			return true
		})
		if !errors.Is(err, ErrDumpInterrupted) {
			break
		}
	}
`,
}

// gpulab's Kubernetes keeps its objects in SQLite: clients for other databases,
// and a whole NATS server, are left out.
var otherDatabases = gobuild.Patch{
	Module: "github.com/k3s-io/kine",
	File:   "pkg/endpoint/init.go",
	From: `	_ "github.com/k3s-io/kine/pkg/drivers/http"
	_ "github.com/k3s-io/kine/pkg/drivers/mysql"
	_ "github.com/k3s-io/kine/pkg/drivers/nats"
	_ "github.com/k3s-io/kine/pkg/drivers/pgsql"
`,
}

// gpulab hands images to its machines itself. k3s's registry for that, with the
// peer-to-peer network under it, is left out.
var registryOfNodes = gobuild.Patch{
	Module: "github.com/k3s-io/k3s",
	Folder: "pkg/spegel",
	By:     "spegel",
}

var k3sPatches = []gobuild.Patch{interruptedDumps, otherDatabases, registryOfNodes}
