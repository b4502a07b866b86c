package charts

import (
	"bytes"
	"fmt"
	"regexp"

	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

// podNames makes the pods of every chart ask for names as they are written. The
// usual way puts each search domain behind them first, and the last of these is the
// network's: there, a name of the lab's own parts may be anybody's, or take seconds.
var podNames = map[string]any{"options": []any{map[string]any{"name": "ndots", "value": "1"}}}

// runsPods finds objects that have a template for pods.
var runsPods = regexp.MustCompile(`(?m)^kind: (Deployment|DaemonSet)$`)

// askAsWritten is Helm's last step before objects are written: podNames in all of them.
type askAsWritten struct{}

func (askAsWritten) Run(rendered *bytes.Buffer) (*bytes.Buffer, error) {
	var out bytes.Buffer
	docs := releaseutil.SplitManifests(rendered.String())
	for i := range len(docs) {
		doc := docs[fmt.Sprintf("manifest-%d", i)]
		if runsPods.MatchString(doc) {
			var err error
			if doc, err = withPodNames(doc); err != nil {
				return nil, err
			}
		}
		fmt.Fprintf(&out, "---\n%s\n", doc)
	}
	return &out, nil
}

func withPodNames(doc string) (string, error) {
	var object struct {
		Spec struct {
			Template struct {
				Spec struct {
					DNSPolicy string `json:"dnsPolicy"`
				} `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
		return "", err
	}
	if object.Spec.Template.Spec.DNSPolicy == "Default" {
		return doc, nil // the cluster's name server: it does not ask itself
	}
	var all map[string]any
	if err := yaml.Unmarshal([]byte(doc), &all); err != nil {
		return "", err
	}
	all["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["dnsConfig"] = podNames
	text, err := yaml.Marshal(all)
	return string(text), err
}
