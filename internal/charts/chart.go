package charts

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"

	"github.com/gpulab/gpulab/assets"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/storage"
	"helm.sh/helm/v3/pkg/storage/driver"
)

// loadChart reads an embedded chart. Helm changes a chart while it renders it,
// so every use loads its own.
func loadChart(name string) (*chart.Chart, error) {
	files, err := chartFiles(name)
	if err != nil {
		return nil, err
	}
	c, err := loader.LoadFiles(files)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", name, err)
	}
	return c, nil
}

// chartFiles lists the files of an embedded chart in the order of their paths.
func chartFiles(name string) ([]*loader.BufferedFile, error) {
	dir, err := fs.Sub(assets.Charts(), name)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", name, err)
	}
	var files []*loader.BufferedFile
	err = fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(dir, path)
		files = append(files, &loader.BufferedFile{Name: path, Data: data})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", name, err)
	}
	return files, nil
}

// digest names the content of a release: chart files, values and podNames. It is kept as
// a label on Helm's record, so that an unchanged release is known without
// rendering it. Values hold secrets; these are random and long, so a shortened
// SHA-256 over all of them gives nothing away.
func (r Release) digest() (string, error) {
	files, err := chartFiles(r.Chart)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintf(h, "%s\x00%d\x00", f.Name, len(f.Data))
		h.Write(f.Data)
	}
	values, err := json.Marshal(r.Values)
	if err != nil {
		return "", fmt.Errorf("values of %s: %w", r.Name, err)
	}
	h.Write(values)
	names, err := json.Marshal(podNames)
	if err != nil {
		return "", err
	}
	h.Write(names)
	return hex.EncodeToString(h.Sum(nil))[:32], nil
}

// render returns the manifest of a release without asking a cluster.
func render(r Release) (string, error) {
	chart, err := loadChart(r.Chart)
	if err != nil {
		return "", err
	}
	cfg := &action.Configuration{
		Releases:     storage.Init(driver.NewMemory()),
		Capabilities: chartutil.DefaultCapabilities.Copy(),
		Log:          func(string, ...any) {},
	}
	install := action.NewInstall(cfg)
	install.ReleaseName = r.Name
	install.Namespace = r.Namespace
	install.DryRun = true
	install.ClientOnly = true
	install.PostRenderer = askAsWritten{}
	install.KubeVersion = &chartutil.KubeVersion{Version: "v1.35.0", Major: "1", Minor: "35"}
	rendered, err := install.Run(chart, r.Values)
	if err != nil {
		return "", plain(err)
	}
	return rendered.Manifest, nil
}
