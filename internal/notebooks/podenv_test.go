package notebooks

import (
	"context"
	"slices"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

// The numbers of threads that an image sets stay, and Kubernetes expands nothing in a
// person's name.
func TestPodEnv(t *testing.T) {
	s := &Service{cfg: Config{
		Profiles: []Profile{{Slug: "own", Title: "Own", Image: "registry.example/own:1"}, {Slug: "cpu", Title: "CPU"}},
		ImageEnv: func(_ context.Context, image string) []string {
			if image != "registry.example/own:1" {
				t.Errorf("asked for %s", image)
			}
			return []string{"PATH=/bin", "OMP_NUM_THREADS=3", "USER=root"}
		},
	}}
	u := users.User{Name: "Ada $(HOME) $x", Email: "ada@example.org"}
	env, threads := s.podEnv(t.Context(), Launch{Profile: "own", Handle: "ada"}, u)
	for name, want := range map[string]string{"USER": "ada", "LOGNAME": "ada", "GPULAB_USER_NAME": "Ada $$(HOME) $$x", "GPULAB_USER_EMAIL": "ada@example.org"} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	if _, set := env["TZ"]; set {
		t.Error("the zone is set where none is known")
	}
	if slices.Contains(threads, "OMP_NUM_THREADS") || !slices.Contains(threads, "OPENBLAS_NUM_THREADS") {
		t.Errorf("with an image that has its own: %v", threads)
	}
	if _, threads = s.podEnv(t.Context(), Launch{Profile: "cpu", Handle: "ada"}, u); !slices.Contains(threads, "OMP_NUM_THREADS") {
		t.Errorf("gpulab's own image: %v", threads)
	}
}
