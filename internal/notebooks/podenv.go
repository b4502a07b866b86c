package notebooks

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpulab/gpulab/internal/users"
)

// threadVariables tell libraries how many threads to start. Without them, libraries count
// all cores of the machine, although a pod may use only some: the pod is throttled, and on
// large machines it reaches its limit of processes.
var threadVariables = []string{
	"OMP_NUM_THREADS", // nproc follows it, too
	"OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
	"NUMEXPR_NUM_THREADS", "NUMEXPR_MAX_THREADS", // the first must not exceed the second, whose default is 16
	"NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT", "PYTHON_CPU_COUNT",
	"TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
}

// podEnv returns what every pod of a launch gets in its environment: env, by name, and
// threads, the variables whose value is how many cores the pod may use. Notebooks get them
// through the hub, jobs and services from jobPod.
func (s *Service) podEnv(ctx context.Context, l Launch, u users.User) (env map[string]string, threads []string) {
	env = map[string]string{
		// getpass.getuser() needs them if the user has no line in passwd.
		"USER": l.Handle, "LOGNAME": l.Handle,
		// start-notebook makes them git's defaults.
		"GPULAB_USER_NAME": u.Name, "GPULAB_USER_EMAIL": u.Email,
	}
	if s.cfg.TimeZone != nil {
		env["TZ"] = s.cfg.TimeZone()
	}
	for name, value := range env {
		if value == "" {
			delete(env, name)
			continue
		}
		env[name] = strings.ReplaceAll(value, "$", "$$") // or Kubernetes would expand $(…)
	}
	var own []string // of the image, which the pod's environment would override
	if p, ok := s.profile(l.Profile); ok && p.Image != "" && s.cfg.ImageEnv != nil {
		own = s.cfg.ImageEnv(ctx, p.Image)
	}
	for _, name := range threadVariables {
		if !slices.ContainsFunc(own, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			threads = append(threads, name)
		}
	}
	return env, threads
}

// processors returns a variable that Kubernetes sets to the container's limit of cores,
// rounded up. Without a limit, it is the number of cores that the machine has for pods.
func processors(name string) corev1.EnvVar {
	return corev1.EnvVar{
		Name: name, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}},
	}
}
