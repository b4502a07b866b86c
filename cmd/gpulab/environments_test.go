package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// TestEnvironmentUses: programs count that a kernel of an environment started, in pods of people.
func TestEnvironmentUses(t *testing.T) {
	const pod = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	proc := t.TempDir()
	process := func(pid, environ, cgroup string) {
		dir := filepath.Join(proc, pid)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "environ"), []byte(environ), 0o600), os.WriteFile(filepath.Join(dir, "cgroup"), []byte(cgroup), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	inPod := "4:memory:/kubepods/burstable/pod" + pod + "/abc\n"
	process("10", "HOME=/home/lea\x00GPULAB_ENVIRONMENT=torch/2.5\x00", inPod)
	process("11", "GPULAB_ENVIRONMENT=torch/2.5\x00", inPod) // what it has started
	process("12", "GPULAB_ENVIRONMENT=small/1\x00", inPod)
	process("13", "NOT_GPULAB_ENVIRONMENT=small/2\x00", inPod)
	process("14", "GPULAB_ENVIRONMENT=small/1\x00", "4:memory:/user.slice\n")
	process("self", "GPULAB_ENVIRONMENT=small/3\x00", inPod)
	users, err := environmentPods(proc, "head")
	if err != nil {
		t.Fatal(err)
	}
	// Of another machine's pod, one knows nothing.
	users = append(users, environmentUser{"small/9", pod, "b"})
	list := usesOf(users, []notebooks.PodInfo{{UID: pod, Node: "head", Handle: "lea", Server: "thesis"}, {UID: "another", Node: "b", Handle: "tom"}})
	slices.SortFunc(list, func(a, b environments.Use) int { return strings.Compare(b.Environment, a.Environment) })
	want := []environments.Use{{Environment: "torch/2.5", Handle: "lea", Notebook: "thesis"}, {Environment: "small/1", Handle: "lea", Notebook: "thesis"}}
	if !slices.Equal(list, want) {
		t.Errorf("it found %+v, want %+v", list, want)
	}
}

// podsThere are the pods of notebooks that there are.
type podsThere []notebooks.PodInfo

func (p podsThere) Notebooks() []notebooks.PodInfo { return p }

// Nobody's environment is taken from them because their machine has not told yet.
func TestCertainUses(t *testing.T) {
	const pod = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
	b := nodes.Node{Name: "b", Version: version.Version}
	earlier := nodes.Node{Name: "b", Version: "0.0.1"}
	told := &machine{environments: &nodeapi.EnvironmentState{Uses: []nodeapi.EnvironmentUse{{ID: "torch/2", Pod: pod}}}}
	lea := podsThere{{UID: pod, Node: "b", Handle: "lea", Server: "thesis"}}
	for what, c := range map[string]struct {
		member nodes.Node
		heard  *machine
		pods   podsThere
		want   string // "busy" where it is not known
	}{
		"told":                 {b, told, lea, "torch/2 lea"},
		"not heard":            {b, nil, lea, "busy"},
		"heard, not told":      {b, &machine{}, lea, "busy"},
		"nobody works there":   {b, nil, nil, ""},
		"somebody elsewhere":   {b, nil, podsThere{{UID: "x", Node: "head"}}, ""},
		"of a version without": {earlier, &machine{}, lea, ""},
	} {
		l := &appliance{id: embedk8s.Identity{NodeName: "head"}}
		l.pool = &pool{lab: l, members: []nodes.Node{c.member}, heard: map[string]*machine{}}
		if c.heard != nil {
			l.pool.heard["b"] = c.heard
		}
		list, err := l.certainUses(c.pods)
		got := ""
		switch failed := (*users.Error)(nil); {
		case errors.As(err, &failed) && errors.Is(failed.Kind, environments.ErrBusy) && strings.Contains(failed.Text, "somebody on b"):
			got = "busy"
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case len(list) > 0:
			got = list[0].Environment + " " + list[0].Handle
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// TestBuildPod: the pod that builds has no rights, and nothing of the machine but three folders and whom it trusts.
func TestBuildPod(t *testing.T) {
	b := environmentPod{node: "head", env: map[string]string{"HTTPS_PROXY": "http://proxy:3128"}}
	p := b.pod(environments.Job{Environment: "/d/env", Work: "/d/work", Cache: "/d/cache", Target: "/opt/gpulab/environments/small/1", Image: "x:1", Command: []string{"true"}})
	c := p.Spec.Containers[0]
	if s := p.Spec.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser != environments.BuildUID || *p.Spec.AutomountServiceAccountToken || p.Spec.HostNetwork || p.Spec.HostPID {
		t.Errorf("the pod may %+v", p.Spec)
	}
	if s := c.SecurityContext; *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || len(s.Capabilities.Drop) != 1 || c.Resources.Limits.Memory().IsZero() {
		t.Errorf("the container may %+v", c)
	}
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if v.Name == m.Name && v.HostPath != nil {
				mounts[m.MountPath] = v.HostPath.Path
				if m.MountPath == "/etc/ssl/certs" && !m.ReadOnly {
					t.Error("it may change whom the machine trusts")
				}
			}
		}
	}
	if len(mounts) != 4 || mounts["/etc/ssl/certs"] != "/etc/ssl/certs" || mounts["/opt/gpulab/environments/small/1"] != "/d/env" || mounts["/work"] != "/d/work" || mounts["/cache"] != "/d/cache" {
		t.Errorf("it has %v of the machine", mounts)
	}
}

func TestEnvCommandsRefuse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root alone gets as far")
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"env", "create", "x"}, exitUsage, "say what is to be in it"},
		{[]string{"env", "create", "--from", "pytorch", "-r", "x.txt"}, exitUsage, "say what is to be in it"},
		{[]string{"env", "create", "-r", "x.txt"}, exitUsage, "needs a name"},
		{[]string{"env", "default"}, exitUsage, "or say --none"},
		{[]string{"env", "remove", "pytorch"}, exitUsage, "name the version too"},
		{[]string{"env", "import", "/nowhere/file"}, exitFailure, "/nowhere/file"},
	} {
		var out, errs strings.Builder
		if code := run(t.Context(), append([]string{"--socket", t.TempDir() + "/s"}, c.args...), strings.NewReader(""), &out, &errs); code != c.code || !strings.Contains(errs.String(), c.says) {
			t.Errorf("%v: exit code %d, %s", c.args, code, errs.String())
		}
	}
}
