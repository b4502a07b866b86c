package notebooks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A manifest of a plain Kubernetes Job is read, not given to Kubernetes: what it
// says becomes a job like any other. What has no meaning for such a job, or would
// reach beyond its owner's own, is refused by its name and line.

// wanted is what a manifest asks of a profile.
type wanted struct {
	cpus   float64
	memory int64
	image  string
	lines  map[string]int // in which each stands
}

var manifestBegins = regexp.MustCompile(`^(apiVersion|kind|metadata|spec)\s*:(\s|$)|^\{\s*("|$)`)

// isManifest tells a manifest from a script, by its file's name or its first line.
func isManifest(file, text string) bool {
	if ext := strings.ToLower(path.Ext(file)); ext == ".yaml" || ext == ".yml" || ext == ".json" {
		return true
	}
	for line := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		if line = strings.TrimSpace(line); line != "" && line != "---" && (line[0] != '#' || strings.HasPrefix(line, "#!")) {
			return manifestBegins.MatchString(line)
		}
	}
	return false
}

// manifest is what is being read.
type manifest struct {
	r                        *JobRequest
	want                     wanted
	kind, version            bool
	command, args            []string
	completions, parallelism int // 0 = not said
	length                   int // of what variables were put into, in bytes
}

// readManifest takes what a manifest says for what was not asked for otherwise.
func (r *JobRequest) readManifest() error {
	if len(r.Args) > 0 {
		return refuse("Arguments are for scripts; a manifest has those of its program in itself.")
	}
	if len(r.Script) > MaxScript {
		return refuse("The manifest is longer than %d KiB.", MaxScript>>10)
	}
	var document, second yaml.Node
	in := yaml.NewDecoder(bytes.NewReader([]byte(r.Script)))
	if err := in.Decode(&document); errors.Is(err, io.EOF) {
		return refuse("The manifest is empty.")
	} else if err != nil {
		return refuse("This is no manifest that can be read: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := in.Decode(&second); !errors.Is(err, io.EOF) {
		return refuse("One file is one job. Submit the documents one by one, each with a file of its own.")
	}
	m := manifest{r: r, want: wanted{lines: map[string]int{}}}
	err := readFields(document.Content[0], "", map[string]field{
		"apiVersion": func(v *yaml.Node, at string) error { m.version = true; return only(v, at, "batch/v1") },
		"kind":       func(v *yaml.Node, at string) error { m.kind = true; return only(v, at, "Job") },
		"metadata":   m.metadata,
		"spec":       m.spec,
		"status":     unread,
	})
	switch {
	case err != nil:
		return err
	case !m.kind || !m.version:
		return refuse("A manifest begins with apiVersion: batch/v1 and kind: Job.")
	case len(m.command) == 0:
		return refuse("The manifest has no spec.template.spec.containers[0].command. It has to say what is run: what an " +
			"image would run by itself is not known here.")
	}
	if err := m.array(); err != nil {
		return err
	}
	r.Script = ""
	for _, word := range append(m.command, m.args...) {
		word, err := m.expanded(word)
		if err != nil {
			return err
		}
		r.Args = append(r.Args, word)
	}
	r.lines, r.image = m.want.lines, m.want.image
	if r.CPUs == 0 {
		r.CPUs = m.want.cpus
	}
	if r.Memory == 0 {
		r.Memory = m.want.memory
	}
	return nil
}

// field reads a value that stands at a path.
type field func(v *yaml.Node, at string) error

// readFields reads a mapping of which these may be said.
func readFields(node *yaml.Node, at string, known map[string]field) error {
	if node.Kind != yaml.MappingNode {
		return wrong(node, at, "has to be a mapping of names to values")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := strings.TrimPrefix(at+"."+clipped(key.Value), ".")
		read, is := known[key.Value]
		switch {
		case isEmpty(value) && (!is || value.Kind == yaml.ScalarNode):
			continue // as in Kubernetes
		case key.Kind != yaml.ScalarNode || !is:
			return refuse("Line %d: %s is not supported in a job. %s", key.Line, name, reason(key.Value))
		case seen[key.Value]:
			return wrong(key, name, "is said twice")
		case value.Kind == yaml.AliasNode || value.Anchor != "":
			return wrong(value, name, "uses an anchor of YAML; write the value out")
		}
		seen[key.Value] = true
		if err := read(value, name); err != nil {
			return err
		}
	}
	return nil
}

// isEmpty reports whether v is what Kubernetes' own tools write for a field that is not set: null, {} or [].
func isEmpty(v *yaml.Node) bool {
	if v.Kind == yaml.MappingNode || v.Kind == yaml.SequenceNode {
		return len(v.Content) == 0
	}
	return v.Kind == yaml.ScalarNode && v.Tag == "!!null"
}

// reasons say why something that Kubernetes knows is not taken, and what there is instead.
var reasons = []struct {
	words string
	names []string
}{
	{"Your home and your shared folders are there by themselves.", []string{"volumes", "volumeMounts", "volumeDevices"}},
	{"A job runs in your own namespace.", []string{"namespace"}},
	{"It runs as you, without further rights.",
		[]string{"securityContext", "hostNetwork", "hostPID", "hostIPC", "hostUsers", "privileged", "shareProcessNamespace"}},
	{"Jobs have no access to the cluster.", []string{"serviceAccountName", "serviceAccount",
		"automountServiceAccountToken"}},
	{"A profile says on which machines it runs.",
		[]string{"nodeName", "nodeSelector", "affinity", "tolerations", "schedulerName", "topologySpreadConstraints",
			"priorityClassName", "runtimeClassName"}},
	{"Nobody reaches it from outside.", []string{"ports", "livenessProbe", "readinessProbe", "startupProbe"}},
	{"Start what comes first in the command.", []string{"initContainers", "lifecycle"}},
	{"Write the value itself, or keep it in a file of your home.", []string{"valueFrom", "envFrom"}},
	{"A job has 30 s after SIGTERM.", []string{"terminationGracePeriodSeconds"}},
	{"What has ended stays in the list.", []string{"ttlSecondsAfterFinished"}},
	{"The image is that of a profile, and is there.", []string{"imagePullSecrets"}},
}

func reason(name string) string {
	for _, why := range reasons {
		if slices.Contains(why.names, name) {
			return why.words
		}
	}
	return "Take it out."
}

func wrong(node *yaml.Node, at, what string) error {
	if at == "" {
		at = "the manifest"
	}
	return refuse("Line %d: %s %s.", node.Line, at, what)
}

func only(v *yaml.Node, at string, allowed ...string) error {
	if v.Kind != yaml.ScalarNode || !slices.Contains(allowed, v.Value) {
		return wrong(v, at, "is "+strconv.Quote(clipped(v.Value))+"; it has to be "+strings.Join(allowed, " or "))
	}
	return nil
}

// text reads a value that is one, as Kubernetes wants it: no number, no yes.
func text(v *yaml.Node, at string) (string, error) {
	if v.Kind != yaml.ScalarNode || v.Tag != "!!str" {
		return "", wrong(v, at, "has to be text; write a number or a truth in quotation marks")
	}
	return v.Value, nil
}

func texts(v *yaml.Node, at string) (list []string, err error) {
	if v.Kind != yaml.SequenceNode {
		return nil, wrong(v, at, "has to be a list of texts")
	}
	for i, one := range v.Content {
		word, err := text(one, fmt.Sprintf("%s[%d]", at, i))
		if err != nil {
			return nil, err
		}
		list = append(list, word)
	}
	return list, nil
}

func whole(v *yaml.Node, at string, least, most int) (int, error) {
	n, err := strconv.Atoi(v.Value)
	if v.Kind != yaml.ScalarNode || v.Tag != "!!int" || err != nil || n < least || n > most {
		return 0, wrong(v, at, fmt.Sprintf("has to be a whole number from %d to %d", least, most))
	}
	return n, nil
}

// amounts are the quantities that are taken. Kubernetes' own reader computes for
// hours on one whose exponent has nine digits.
var amounts = regexp.MustCompile(`^([0-9]{1,18}(\.[0-9]{0,18})?|\.[0-9]{1,18})([numkMGTPE]|[KMGTPE]i|` +
	`[eE][+-]?[0-9]{1,2})?$`)

func amount(v *yaml.Node, at string) (resource.Quantity, error) {
	if v.Kind == yaml.ScalarNode && amounts.MatchString(v.Value) {
		if q, err := resource.ParseQuantity(v.Value); err == nil && q.Sign() >= 0 {
			return q, nil
		}
	}
	return resource.Quantity{}, wrong(v, at, "is not a quantity. Write 2, 500m or 8Gi")
}

func (m *manifest) name(v *yaml.Node, at string) error {
	name, err := text(v, at)
	setIfEmpty(&m.r.Name, strings.TrimSuffix(name, "-"))
	return err
}

// metadata reads the name. Labels have no effect here; the rest is what Kubernetes writes into what it has stored.
func (m *manifest) metadata(v *yaml.Node, at string) error {
	return readFields(v, at, map[string]field{
		"name": m.name, "generateName": m.name, "labels": unread, "annotations": unread, "uid": unread, "generation": unread,
		"resourceVersion": unread, "creationTimestamp": unread, "managedFields": unread, "selfLink": unread,
		"ownerReferences": unread,
		"namespace":       unchanged("namespace", "default"),
	})
}

func (m *manifest) spec(v *yaml.Node, at string) error {
	return readFields(v, at, map[string]field{
		"template": func(v *yaml.Node, at string) error {
			return readFields(v, at, map[string]field{
				"metadata": func(v *yaml.Node, at string) error {
					return readFields(v, at, map[string]field{
						"name": ignored, "labels": unread, "annotations": unread, "creationTimestamp": unread,
					})
				},
				"spec": m.podSpec,
			})
		},
		"selector":             unread,
		"manualSelector":       func(v *yaml.Node, at string) error { return only(v, at, "false") },
		"podReplacementPolicy": unread,
		"activeDeadlineSeconds": func(v *yaml.Node, at string) error {
			n, err := whole(v, at, int(minJobLimit/time.Second), int(MaxJobLimit/time.Second))
			if m.r.Limit == 0 {
				m.r.Limit = time.Duration(n) * time.Second
			}
			return err
		},
		"backoffLimit": func(v *yaml.Node, at string) error {
			n, err := whole(v, at, 0, MaxRetries)
			if m.r.Retries == nil {
				m.r.Retries = &n
			}
			return err
		},
		"completions": func(v *yaml.Node, at string) (err error) {
			m.completions, err = whole(v, at, 1, maxTasks)
			return err
		},
		"parallelism": func(v *yaml.Node, at string) (err error) {
			m.parallelism, err = whole(v, at, 1, maxTasks)
			return err
		},
		"completionMode": func(v *yaml.Node, at string) error { return only(v, at, "Indexed", "NonIndexed") },
		"suspend":        func(v *yaml.Node, at string) error { return only(v, at, "false") },
	})
}

// unread is a field that changes nothing for a job here.
func unread(*yaml.Node, string) error { return nil }

// unchanged is a field that may have Kubernetes' default alone; any other value is refused with the reason of its name.
func unchanged(name, standard string) field {
	return func(v *yaml.Node, at string) error {
		if v.Value != standard {
			return wrong(v, at, "is not "+standard+". "+strings.TrimSuffix(reason(name), "."))
		}
		return nil
	}
}

func ignored(v *yaml.Node, at string) error {
	_, err := text(v, at)
	return err
}

func (m *manifest) podSpec(v *yaml.Node, at string) error {
	return readFields(v, at, map[string]field{
		"restartPolicy":                 func(v *yaml.Node, at string) error { return only(v, at, "Never", "OnFailure") },
		"dnsPolicy":                     func(v *yaml.Node, at string) error { return only(v, at, "ClusterFirst") },
		"schedulerName":                 unchanged("schedulerName", "default-scheduler"),
		"terminationGracePeriodSeconds": unchanged("terminationGracePeriodSeconds", "30"),
		"containers": func(v *yaml.Node, at string) error {
			if v.Kind != yaml.SequenceNode || len(v.Content) != 1 {
				return wrong(v, at, "has to be a list of one: a job here is one container")
			}
			if v.Content[0].Kind == yaml.AliasNode {
				return wrong(v, at, "uses an anchor of YAML; write the value out")
			}
			return m.container(v.Content[0], at+"[0]")
		},
	})
}

func (m *manifest) container(v *yaml.Node, at string) error {
	return readFields(v, at, map[string]field{
		"name":                     ignored,
		"imagePullPolicy":          unread,
		"terminationMessagePath":   unread,
		"terminationMessagePolicy": unread,
		"image": func(v *yaml.Node, at string) (err error) {
			m.want.lines["image"] = v.Line
			m.want.image, err = text(v, at)
			return err
		},
		"command": func(v *yaml.Node, at string) (err error) { m.command, err = texts(v, at); return err },
		"args":    func(v *yaml.Node, at string) (err error) { m.args, err = texts(v, at); return err },
		"workingDir": func(v *yaml.Node, at string) error {
			dir, err := text(v, at)
			setIfEmpty(&m.r.Dir, dir)
			return err
		},
		"env": m.env,
		"resources": func(v *yaml.Node, at string) error {
			known := map[string]field{"cpu": m.cpu, "memory": m.memory, gpuResource: m.gpus}
			side := func(v *yaml.Node, at string) error { return readFields(v, at, known) }
			return readFields(v, at, map[string]field{"limits": side, "requests": side})
		},
	})
}

func (m *manifest) cpu(v *yaml.Node, at string) error {
	q, err := amount(v, at)
	if cpus := q.AsApproximateFloat64(); cpus > m.want.cpus {
		m.want.cpus, m.want.lines["cpu"] = cpus, v.Line
	}
	return err
}

func (m *manifest) memory(v *yaml.Node, at string) error {
	q, err := amount(v, at)
	if bytes := q.Value(); bytes > m.want.memory {
		m.want.memory, m.want.lines["memory"] = bytes, v.Line
	}
	return err
}

func (m *manifest) gpus(v *yaml.Node, at string) error {
	q, err := amount(v, at)
	if err != nil {
		return err
	}
	n, exact := q.AsInt64()
	if !exact || n > math.MaxInt16 {
		return wrong(v, at, "has to be a whole number of GPUs")
	}
	if had := m.want.lines["gpus"]; had != 0 && m.r.GPUs != nil && *m.r.GPUs != int(n) {
		return wrong(v, at, fmt.Sprintf("is another than in line %d", had))
	}
	if m.r.GPUs == nil {
		m.want.lines["gpus"], m.r.GPUs = v.Line, new(int(n))
	}
	return nil
}

var environmentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (m *manifest) env(v *yaml.Node, at string) error {
	if v.Kind != yaml.SequenceNode {
		return wrong(v, at, "has to be a list of names and values")
	}
	m.r.Env = map[string]string{}
	for i, one := range v.Content {
		var name, value string
		set := func(to *string) field {
			return func(v *yaml.Node, at string) (err error) { *to, err = text(v, at); return err }
		}
		at := fmt.Sprintf("%s[%d]", at, i)
		if err := readFields(one, at, map[string]field{"name": set(&name), "value": set(&value)}); err != nil {
			return err
		}
		switch {
		case !environmentName.MatchString(name) || len(name) > 200:
			return wrong(one, at, "has no name that a variable can have")
		case strings.ContainsRune(value, 0):
			return wrong(one, at, "has the character with the number 0 in its value")
		}
		value, err := m.expanded(value)
		if err != nil {
			return err
		}
		m.r.Env[name] = value
	}
	return nil
}

// expanded is a text with the variables that are known so far put in. All such
// texts together are no longer than what a job may be given: one that holds the
// one before many times would soon be longer than the memory.
func (m *manifest) expanded(text string) (string, error) {
	text, ok := expanded(text, m.r.Env, maxArgs-m.length)
	if !ok {
		return "", errTooLong
	}
	m.length += len(text)
	return text, nil
}

// expanded is a text with $(NAME) replaced as Kubernetes does: where there is such
// a variable; $$ stands for $. It is ok unless it is longer than most.
func expanded(text string, env map[string]string, most int) (_ string, ok bool) {
	var b strings.Builder
	for b.Len() <= most {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String(), b.Len() <= most
		}
		name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
		value, known := env[name]
		switch {
		case strings.HasPrefix(rest, "$"):
			b.WriteByte('$')
			text = rest[1:]
		case strings.HasPrefix(rest, "(") && closed && known:
			b.WriteString(value)
			text = after
		default:
			b.WriteByte('$')
			text = rest
		}
	}
	return "", false
}

// array makes one of a job that is to be completed several times.
func (m *manifest) array() error {
	if m.completions <= 1 {
		if m.parallelism > 1 {
			return refuse("spec.parallelism needs spec.completions: how often it is to be run in all.")
		}
		return nil
	}
	setIfEmpty(&m.r.Array, fmt.Sprintf("0-%d%%%d", m.completions-1, max(m.parallelism, 1)))
	return nil
}

func (s *Service) imageOf(p Profile) string {
	if p.Image != "" {
		return p.Image
	}
	return s.cfg.JobImage()
}

// catalogue are the profiles with what they have.
func (s *Service) catalogue() string {
	var list []string
	for _, p := range s.cfg.Profiles {
		words := p.Slug + " (" + s.imageOf(p)
		if p.CPUs > 0 {
			words += ", cpu " + strconv.FormatFloat(p.CPUs, 'f', -1, 64)
		}
		if p.Memory != "" {
			words += ", memory " + p.Memory
		}
		if p.GPUs > 0 {
			words += ", " + gpuCount(p.GPUs)
		}
		list = append(list, words+")")
	}
	return strings.Join(list, ", ")
}

// mergedEnv is what a job's program finds in its environment beside what every job has.
func mergedEnv(own, task map[string]string) map[string]string {
	all := maps.Clone(own)
	if all == nil {
		return task
	}
	maps.Copy(all, task)
	return all
}
