package embedk8s

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Each machine of a pool holds the credentials of k3s's controller and of a kubelet. TestPool (test/e2e) tries on a
// real cluster what they may do.
func TestMachinesChangeNothingOfOthers(t *testing.T) {
	type object struct {
		Kind     string
		Metadata struct{ Name string }
		Rules    []struct{ Resources, Verbs []string }
		Spec     struct {
			FailurePolicy    string
			MatchConstraints struct {
				ResourceRules []struct{ Operations, Resources []string }
			}
			PolicyName        string
			ValidationActions []string
			Variables         []struct{ Name, Expression string }
			Validations       []struct{ Expression string }
		}
	}
	policies, bound := map[string]object{}, []string{}
	for doc := range bytes.SplitSeq(rbac, []byte("\n---\n")) {
		var o object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			t.Fatalf("%v\n%s", err, doc)
		}
		switch {
		case o.Kind == "ClusterRole":
			for _, r := range o.Rules {
				if writes := slices.DeleteFunc(slices.Clone(r.Verbs), func(v string) bool { return v == "get" || v == "list" || v == "watch" }); slices.Contains(r.Resources, "nodes") && len(writes) > 0 {
					t.Errorf("%s may %s all nodes", o.Metadata.Name, strings.Join(writes, " and "))
				}
				if slices.Contains(r.Resources, "secrets") {
					t.Errorf("%s reads secrets", o.Metadata.Name)
				}
			}
		case o.Kind == "ValidatingAdmissionPolicy" && o.Spec.FailurePolicy == "Fail":
			policies[o.Metadata.Name] = o
		case o.Kind == "ValidatingAdmissionPolicyBinding" && slices.Equal(o.Spec.ValidationActions, []string{"Deny"}):
			bound = append(bound, o.Spec.PolicyName)
		}
	}
	for name, wants := range map[string][]string{
		"gpulab-machines":         {"nodes/status", "metadata.?labels", "metadata.?annotations"},
		"gpulab-pod-addresses":    {"CREATE", "podCIDR"},
		"gpulab-pods-of-machines": {"CREATE", "pods", "false"},
	} {
		p, ok := policies[name]
		if !ok || !slices.Contains(bound, name) {
			t.Errorf("there is no policy %s that is bound", name)
		}
		text, err := yaml.Marshal(p.Spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s says nothing of %s", name, want)
			}
		}
	}
}
