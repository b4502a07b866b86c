package notebooks

import (
	"bytes"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// jobRunner starts the program in the pod and keeps its log.
//
//go:embed jobrun.py
var jobRunner string

// Bounds of a job's log in bytes: how much of its beginning is kept, and how
// large its file gets.
const (
	logHead = 2 << 20
	logMost = 10 << 20
)

// logCut is the line that stands for what is left out of a log. Its length does
// not depend on how much that is.
const logCut = "\n[gpulab left out %020d bytes here]\n"

// jobGrace is what a job has to save its state, from SIGTERM to its end.
const jobGrace = 30 * time.Second

// jobSpec is what the runner is told, as JSON.
type jobSpec struct {
	ID   int64  `json:"id"`
	Name string `json:"name"`
	// Script is the text of File, and Reader the program that reads it: "" for bash, or the
	// program that its first line names.
	Script string   `json:"script"`
	File   string   `json:"file"`
	Reader string   `json:"reader"`
	Args   []string `json:"args"`
	Dir    string   `json:"dir"`
	Output string   `json:"output"`
	Errors string   `json:"errors"` // the file of its standard error, "" = Output
	Head   int      `json:"head"`
	Most   int      `json:"most"`
	Cut    string   `json:"cut"`
	// Venv is the virtual environment in which it runs, "" for none.
	Venv string `json:"venv"`
	// Try counts its runs from 1; Line stands in the log before any but the first.
	Try  int    `json:"try"`
	Line string `json:"line"`
	// Saved is the exit code for a program that was asked to end and did so with 0.
	Saved int `json:"saved"`
	// Append says that its log goes on whenever it is started.
	Append bool `json:"append"`
	// Env is in its environment beside what every job has.
	Env map[string]string `json:"env"`
	// Tools are programs on its PATH, nil for none.
	Tools *jobTools `json:"tools"`
}

// specVariable is the variable in the pod's environment that has the jobSpec. maxVariable is how long Linux lets a
// variable be, with its name, in bytes; specGrows is how much longer a jobSpec may get after the job was submitted.
const (
	specVariable = "GPULAB_JOB"
	maxVariable  = 128 << 10
	specGrows    = 2 << 10
)

// encoded returns the spec as the runner reads it: JSON in base64, because Kubernetes would read $(…) in it.
func (spec jobSpec) encoded() (string, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false) // it would make six characters of each < in a script
	if err := e.Encode(spec); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(text.Bytes()), nil
}

// checkSize refuses a job that does not fit into its pod's environment.
func (s *Service) checkSize(l Launch, program Program, profile Profile) error {
	environment, err := s.environment(l.Job.Environment)
	if err != nil {
		return err
	}
	text, err := l.spec(program, profile, environment).encoded()
	if err != nil {
		return err
	}
	if size := len(specVariable) + len("=") + len(text) + specGrows; size >= maxVariable {
		return refuse("The job is too large: script, arguments and variables take %d KiB in the pod's environment, and "+
			"Linux allows %d KiB. "+
			"Copy the script into a file of your home with `gpulab cp`, and submit a short script that runs it.",
			(size+1023)>>10, maxVariable>>10)
	}
	return nil
}

// spec returns what the runner is told about a launch.
func (l Launch) spec(program Program, profile Profile, environment Environment) jobSpec {
	spec := jobSpec{
		ID: l.ID, Name: l.Title, Script: program.Script, File: fileName(l.Title), Reader: program.Reader,
		Args: append([]string{}, program.Args...),
		Dir:  program.Dir, Output: l.Job.Output, Errors: l.Job.Errors, Head: logHead, Most: logMost, Cut: logCut,
		Venv: environment.Path,
		Try:  l.Job.Try(), Line: l.startLine(), Saved: exitSaved, Append: l.Service != nil,
		Env: mergedEnv(program.Env, l.programEnv()),
	}
	if ending := endings[program.Reader]; !strings.HasSuffix(spec.File, ending) {
		spec.File += ending
	}
	if program.Reader != notebookReader && forSlurm(program.Script) {
		spec.Tools = &jobTools{slurmNames, slurmTools}
		spec.Env = mergedEnv(l.slurmEnv(profile), spec.Env)
	}
	return spec
}

// podOptions are what the hub is told of a notebook, as far as a job needs it.
type podOptions struct {
	UID          int64 `json:"uid"`
	HomeReadOnly bool  `json:"homeReadOnly"`
	HostUsers    bool  `json:"hostUsers"`
	Folders      []struct {
		Claim    string `json:"claim"`
		Name     string `json:"name"`
		ReadOnly bool   `json:"readOnly"`
		GID      int64  `json:"gid"`
	} `json:"folders"`
	Node     string   `json:"node"`
	Machines []string `json:"machines"`
	Prefer   []string `json:"prefer"`
	Models   string   `json:"models"` // where it asks for models; "" is Hugging Face itself
	// Env and Threads are the results of podEnv.
	Env     map[string]string `json:"env"`
	Threads []string          `json:"threads"`
}

// readOptions takes what a launch gets besides its profile.
func readOptions(options map[string]any) (podOptions, error) {
	var o podOptions
	text, err := json.Marshal(options)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err == nil && o.UID < 1000 {
		err = fmt.Errorf("the user ID %d is nobody's", o.UID) // pods never run as the machine's own
	}
	return o, err
}

// PodNames makes a pod ask for names as they are written, before any search domain of
// the cluster or the network has a say. The charts and jupyterhub_config.py say the same.
func PodNames() *corev1.PodDNSConfig {
	return &corev1.PodDNSConfig{Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("1")}}}
}

// jobPod is the pod of a job: as the hub makes those of notebooks, but for what
// runs in it. jupyterhub_config.py is the other side of this.
func (s *Service) jobPod(l Launch, program Program, o podOptions) (*corev1.Pod, error) {
	profile, ok := s.profile(l.Profile)
	if !ok {
		return nil, fmt.Errorf("the profile %s is gone", l.Profile)
	}
	profile.GPUs = l.GPUs
	environment, err := s.environment(l.Job.Environment)
	if err != nil {
		return nil, err
	}
	spec, err := l.spec(program, profile, environment).encoded()
	if err != nil {
		return nil, err
	}
	home := "/home/" + l.Handle
	container := corev1.Container{
		Name: "job", Image: s.cfg.JobImage(), ImagePullPolicy: corev1.PullIfNotPresent, WorkingDir: home,
		// The image's entrypoint goes first, as with a notebook.
		Args:                     []string{"python3", "-I", "-c", jobRunner},
		Env:                      append(s.jobEnv(l, home, o), corev1.EnvVar{Name: specVariable, Value: spec}),
		Resources:                profile.resources(s.cfg.ScratchSize),
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
		SecurityContext: &corev1.SecurityContext{
			Privileged: new(false), AllowPrivilegeEscalation: new(false), RunAsNonRoot: new(true), RunAsUser: &o.UID,
			RunAsGroup:   &o.UID,
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	if profile.Image != "" {
		container.Image = profile.Image
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("job-%d", l.ID), Namespace: "user-" + l.Handle,
			Labels: map[string]string{
				labelComponent: componentJob, labelUser: l.Handle, labelNotebook: l.Name, labelLaunch: strconv.FormatInt(l.ID, 10),
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, PriorityClassName: "gpulab-notebook",
			ActiveDeadlineSeconds:         new(int64(l.Job.Limit / time.Second)),
			TerminationGracePeriodSeconds: new(int64(jobGrace / time.Second)),
			AutomountServiceAccountToken:  new(false), EnableServiceLinks: new(false), DNSConfig: PodNames(),
			HostUsers: new(o.HostUsers || l.GPUs > 0), // as with notebooks, see jupyterhub_config.py
			SecurityContext: &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
		},
	}
	if l.Service != nil {
		l.Service.shape(pod, &container)
	}
	addVolumes(pod, &container, home, o)
	if s.cfg.EnvironmentsMount != "" {
		addEnvironments(pod, &container, s.cfg.EnvironmentsMount)
	}
	if environment.ID != "" {
		container.Env = append(container.Env, corev1.EnvVar{Name: environment.Variable, Value: environment.ID})
	}
	pod.Spec.Containers = []corev1.Container{container}
	// Kubernetes would delete it once its node has been away for five minutes.
	for _, state := range []string{"not-ready", "unreachable"} {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations,
			corev1.Toleration{
				Key: "node.kubernetes.io/" + state, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			})
	}
	if o.Node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: o.Node}
	}
	return pod, chooseMachines(pod, profile.GPUKind(), o)
}

func (s *Service) jobEnv(l Launch, home string, o podOptions) []corev1.EnvVar {
	env := []corev1.EnvVar{
		{Name: "HOME", Value: home}, {Name: "JUPYTERHUB_USER", Value: l.Handle}, {Name: "SCRATCH", Value: "/scratch"},
	}
	for _, all := range []map[string]string{s.cfg.JobEnv, o.Env} {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			env = append(env, corev1.EnvVar{Name: name, Value: all[name]})
		}
	}
	for _, name := range o.Threads {
		env = append(env, processors(name))
	}
	if o.Models != "" {
		env = append(env, corev1.EnvVar{Name: "HF_ENDPOINT", Value: o.Models},
			corev1.EnvVar{Name: "HF_HUB_DISABLE_XET", Value: "1"})
	}
	return env
}

// resources are what a container of this profile is promised, and may take.
// scratch is what it may write beside its home.
func (p Profile) resources(scratch resource.Quantity) corev1.ResourceRequirements {
	need := p.need()
	r := corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU:              *resource.NewMilliQuantity(need.MilliCPU, resource.DecimalSI),
			corev1.ResourceMemory:           *resource.NewQuantity(need.Memory, resource.BinarySI),
			corev1.ResourceEphemeralStorage: resource.MustParse("0"),
		},
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: scratch},
	}
	if p.CPUs > 0 {
		r.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(p.CPUs*1000), resource.DecimalSI)
	}
	if q, err := resource.ParseQuantity(p.Memory); err == nil {
		r.Limits[corev1.ResourceMemory] = q
	}
	if p.GPUs > 0 {
		r.Limits[gpuResource] = *resource.NewQuantity(int64(p.GPUs), resource.DecimalSI)
	}
	return r
}

// addVolumes gives the pod the home, its shared folders, and room beside them.
func addVolumes(pod *corev1.Pod, container *corev1.Container, home string, o podOptions) {
	claim := func(name string, readOnly bool) corev1.VolumeSource {
		return corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name,
			ReadOnly: readOnly}}
	}
	scratch := container.Resources.Limits[corev1.ResourceEphemeralStorage]
	memory := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
	if limit, ok := container.Resources.Limits[corev1.ResourceMemory]; ok {
		memory.SizeLimit = resource.NewQuantity(limit.Value()/2, resource.BinarySI)
	}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "home", VolumeSource: claim("home", false)},
		{Name: "shm", VolumeSource: corev1.VolumeSource{EmptyDir: memory}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &scratch}}},
		{Name: "local", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &scratch}}},
	}
	container.VolumeMounts = []corev1.VolumeMount{
		{Name: "home", MountPath: home}, {Name: "shm", MountPath: "/dev/shm"}, {Name: "scratch", MountPath: "/tmp"},
		{Name: "local", MountPath: "/scratch"},
	}
	groups := map[int64]bool{}
	for _, f := range o.Folders {
		mount := corev1.VolumeMount{Name: f.Claim, MountPath: home + "/shared/" + f.Name, ReadOnly: f.ReadOnly}
		if f.ReadOnly {
			mount.RecursiveReadOnly = new(corev1.RecursiveReadOnlyEnabled)
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: f.Claim, VolumeSource: claim(f.Claim, f.ReadOnly)})
		container.VolumeMounts = append(container.VolumeMounts, mount)
		if f.GID != 0 {
			groups[f.GID] = true
		}
	}
	pod.Spec.SecurityContext.SupplementalGroups = slices.Sorted(maps.Keys(groups))
}

// addEnvironments lets it see the lab's environments, which it cannot change.
func addEnvironments(pod *corev1.Pod, container *corev1.Container, mount string) {
	const name = "environments"
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: true},
	}})
	container.VolumeMounts = append(container.VolumeMounts,
		corev1.VolumeMount{Name: name, MountPath: mount, ReadOnly: true})
}

// chooseMachines keeps the pod to the machines it may run on, and to those it
// should where they have room.
func chooseMachines(pod *corev1.Pod, kind GPUKind, o podOptions) error {
	var required corev1.NodeSelectorTerm
	if kind != (GPUKind{}) {
		text, err := json.Marshal(kind.nodeTerm())
		if err == nil {
			err = json.Unmarshal(text, &required)
		}
		if err != nil {
			return fmt.Errorf("the kind of GPU of %s: %w", pod.Name, err)
		}
	}
	named := func(machines []string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: machines}
	}
	if o.Machines != nil {
		required.MatchExpressions = append(required.MatchExpressions, named(o.Machines))
	}
	affinity := &corev1.NodeAffinity{}
	if required.MatchExpressions != nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{required}}
	}
	if o.Prefer != nil {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = []corev1.PreferredSchedulingTerm{
			{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{named(
				o.Prefer)}}},
		}
	}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: affinity}
	return nil
}
