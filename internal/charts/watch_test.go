package charts

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEdited(t *testing.T) {
	object := func(version string, generation int64, label string) *metav1.PartialObjectMetadata {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: version, Generation: generation, Labels: map[string]string{"a": label},
		}}
	}
	quota := func(version, label string, spec, status int64) *metav1.PartialObjectMetadata {
		at := func(second int64) *metav1.Time { return &metav1.Time{Time: time.Unix(second, 0)} }
		o := object(version, 0, label)
		o.ManagedFields = []metav1.ManagedFieldsEntry{
			{Manager: "gpulab", Operation: metav1.ManagedFieldsOperationApply, Time: at(spec)},
			{Manager: "k3s", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status", Time: at(status)},
		}
		return o
	}
	for _, tc := range []struct {
		name        string
		before, now *metav1.PartialObjectMetadata
		want        bool
	}{
		{"a deployment's status", object("1", 3, "x"), object("2", 3, "x"), false},
		{"a deployment's spec", object("1", 3, "x"), object("2", 4, "x"), true},
		{"a label", object("1", 3, "x"), object("2", 3, "y"), true},
		{"a config map", object("1", 0, "x"), object("2", 0, "x"), true},
		{"a quota's status", quota("1", "x", 1, 1), quota("2", "x", 1, 2), false},
		{"a quota's spec", quota("1", "x", 1, 1), quota("2", "x", 2, 2), true},
		{"a quota's label", quota("1", "x", 1, 1), quota("2", "y", 1, 2), true},
		{"seen again", object("1", 0, "x"), object("1", 0, "x"), false},
	} {
		if got := edited(tc.before, tc.now); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}

// Every kind in our charts is watched, so that each is mended soon.
func TestAllKindsAreWatched(t *testing.T) {
	names := map[string]bool{}
	for _, kind := range watched {
		names[kind.Resource] = true
	}
	for _, r := range Plan(sampleInputs()) {
		for name, object := range mustRender(t, r) {
			kind, _ := object["kind"].(string)
			if !names[plural(kind)] {
				t.Errorf("%s: nobody watches its kind, %s", name, kind)
			}
		}
	}
}

func plural(kind string) string {
	lower := []byte(kind)
	for i, c := range lower {
		if c >= 'A' && c <= 'Z' {
			lower[i] = c - 'A' + 'a'
		}
	}
	switch s := string(lower); {
	case s[len(s)-1] == 's':
		return s + "es"
	case s[len(s)-1] == 'y':
		return s[:len(s)-1] + "ies"
	default:
		return s + "s"
	}
}
