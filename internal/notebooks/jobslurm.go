package notebooks

import (
	_ "embed"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpulab/gpulab/internal/units"
)

// slurmTools is the program that a Slurm script finds under each of the slurmNames.
//
//go:embed slurm.py
var slurmTools string

var slurmNames = []string{"srun", "module", "ml", "scontrol"}

// jobTools are programs for the job alone: one text under several names.
type jobTools struct {
	Names []string `json:"names"`
	Text  string   `json:"text"`
}

// directiveNames maps all names of each directive to what it sets.
var directiveNames = map[string]string{
	"--gpus": "gpus", "-G": "gpus", "--gres": "gres", "--gpus-per-node": "gpus", "--gpus-per-task": "gpus",
	"--time": "time", "-t": "time",
	"--name": "name", "--job-name": "name", "-J": "name",
	"--output": "output", "-o": "output",
	"--error": "errors", "-e": "errors",
	"--profile": "profile",
	"--chdir":   "dir", "-D": "dir",
	"--env":   "environment",
	"--after": "after", "--dependency": "after", "-d": "after",
	"--retries": "retries",
	"--array":   "array", "-a": "array",
	"--preemptible": "preemptible",
	"--cpus":        "cpus", "--cpus-per-task": "cpus", "-c": "cpus", "--mincpus": "cpus",
	"--cpus-per-gpu": "cpus-per-gpu",
	"--mem":          "mem", "--mem-per-cpu": "mem-per-cpu", "--mem-per-gpu": "mem-per-gpu",
	"--mail-type": "mail",
	"--export":    "export",
	"--input":     "input", "-i": "input",
	"--nodes": "nodes", "-N": "nodes",
	"--ntasks": "tasks", "-n": "tasks", "--ntasks-per-node": "tasks", "--tasks-per-node": "tasks",
	"--ntasks-per-gpu": "tasks",
}

// directiveValues has an example of each directive's value, for errors.
var directiveValues = map[string]string{
	"gpus": "1", "gres": "gpu:1", "time": "2:00:00", "name": "train", "output": "train.log", "errors": "train.err",
	"profile": "gpu",
	"dir":     "work", "environment": "pytorch", "after": "afterok:12", "retries": "3", "array": "0-9", "cpus": "4",
	"cpus-per-gpu": "4",
	"mem":          "8G", "mem-per-cpu": "2G", "mem-per-gpu": "8G", "mail": "END", "export": "NAME=VALUE", "nodes": "1",
	"tasks": "1",
}

// meaningless has the options of sbatch that have no effect here; true for those that take a value.
var meaningless = map[string]bool{
	"--partition": true, "-p": true, "--account": true, "-A": true, "--qos": true, "-q": true, "--mail-user": true,
	"--comment": true, "--reservation": true, "--wckey": true, "--clusters": true, "--cluster": true, "-M": true,
	"--open-mode": true, "--time-min": true, "--tmp": true, "--hint": true, "--mem-bind": true, "--cpu-bind": true,
	"--gpu-bind": true, "--gpu-freq": true, "--cpu-freq": true, "--distribution": true, "-m": true, "--acctg-freq": true,
	"--threads-per-core": true, "--ntasks-per-core": true, "--ntasks-per-socket": true, "--sockets-per-node": true,
	"--cores-per-socket": true, "--extra-node-info": true, "-B": true, "--core-spec": true, "-S": true,
	"--thread-spec": true,
	"--switches":    true, "--delay-boot": true, "--priority": true, "--mcs-label": true, "--power": true,
	"--network":    true,
	"--gres-flags": true, "--wait-all-nodes": true, "--kill-on-invalid-dep": true, "--admin-comment": true,
	"--extra":   true,
	"--verbose": false, "-v": false, "--quiet": false, "-Q": false, "--exclusive": false, "--oversubscribe": false,
	"-s":           false,
	"--overcommit": false, "-O": false, "--no-kill": false, "-k": false, "--ignore-pbs": false, "--parsable": false,
	"--nice": false, "--propagate": false, "--get-user-env": false, "--contiguous": false, "--spread-job": false,
	"--use-min-nodes": false, "--reboot": false,
}

const chosenMachine = "a profile says on which GPUs a job runs, and the lab chooses the machine. Write --profile=P; " +
	"`gpulab profiles` lists them"

// notTaken has options of sbatch that are refused, each with what gpulab does instead.
var notTaken = map[string]string{
	"--requeue": "--preemptible lets a job give way to others and run again later, and --retries=N lets it run " +
		"again when it fails",
	"--no-requeue": "no job is run again unless it says so, with --preemptible or --retries=N",
	"--constraint": chosenMachine, "-C": chosenMachine,
	"--nodelist": chosenMachine, "-w": chosenMachine,
	"--exclude": chosenMachine, "-x": chosenMachine,
	"--begin": startsInTurn, "-b": startsInTurn, "--hold": startsInTurn, "-H": startsInTurn, "--immediate": startsInTurn,
	"-I":                startsInTurn,
	"--deadline":        "--time says how long it may run",
	"--signal":          "a job gets SIGTERM 30 s before it is ended, at its time limit too; write `trap … TERM`",
	"--wait":            "`gpulab submit --wait` waits for it",
	"-W":                "`gpulab submit --wait` waits for it",
	"--wrap":            "`gpulab run -- COMMAND` runs a command",
	"--export-file":     "write --export=NAME=VALUE, or read the file in the script",
	"--container":       "a profile has the image. Write --profile=P; `gpulab profiles` lists them",
	"--gpus-per-socket": "write --gpus=N",
}

const startsInTurn = "a job starts when its turn has come; --dependency=afterok:N lets it wait for another job"

const oneProgram = "a job here is one program on one machine. For its threads ask for cores, such as " +
	"--cpus-per-task=4; for many programs of one kind make an array, such as --array=0-3"

// directives reads the directives of a script into a request.
type directives struct {
	r    *JobRequest
	line int      // the line that is being read
	left []string // options that have no effect here, as they are written
	// What the script asks for: cores per GPU; and memory in bytes, in total, per core and per GPU.
	cpusPerGPU, memory, memoryPerCPU, memoryPerGPU int64
}

// forSlurm reports whether a script was written for Slurm: it has a line #SBATCH before its first command.
func forSlurm(script string) bool {
	for line := range strings.Lines(script) {
		if rest, is := strings.CutPrefix(line, "#SBATCH"); is && strings.TrimLeftFunc(rest, unicode.IsSpace) != rest {
			return true
		}
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			return false
		}
	}
	return false
}

// wrong adds an error to the faults, with the line that is being read.
func (d *directives) wrong(err error) {
	if err != nil {
		d.r.faults = append(d.r.faults, fmt.Sprintf("Line %d: %s", d.line, err.Error()))
	}
}

// read reads the directives in the words of a line.
func (d *directives) read(words []string) {
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		name, value, has := strings.Cut(word, "=")
		if !strings.HasPrefix(name, "--") && len(name) > 2 && strings.HasPrefix(name, "-") {
			name, value, has = word[:2], word[2:], true // -t30
		}
		what, known := directiveNames[name]
		valued, left := meaningless[name]
		bare := what == "preemptible" || left && !valued
		if !has && !bare && len(words) > 0 && (known || !strings.HasPrefix(words[0], "-")) {
			value, has = words[0], true
			words = words[1:]
			word += " " + value
		}
		switch instead := notTaken[name]; {
		case left:
			d.left = append(d.left, clipped(word))
		case instead != "":
			d.wrong(refuse("gpulab does not support %s: %s.", name, instead))
		case !known:
			d.wrong(refuse("gpulab does not support %s. Remove it. The directives are --gpus, --gres=gpu:N, --cpus-per-task, "+
				"--mem, --time, --job-name, --output, --error, --chdir, --env, --export, --dependency, --retries, --array, "+
				"--preemptible, --mail-type and --profile.", clipped(word)))
		case bare && !has:
			d.wrong(d.take(what, name, "yes", word))
		case !has:
			d.wrong(refuse("%s needs a value, such as %s=%s.", name, name, directiveValues[what]))
		default:
			d.wrong(d.take(what, name, value, word))
		}
	}
}

// take sets what a directive asks for.
func (d *directives) take(what, name, value, word string) error {
	amount := func(to *int64) error {
		n, ok := slurmMemory(value)
		if !ok {
			return refuse("%s is not an amount of memory. Write a number followed by M, G or T, such as %s=8G.", clipped(word),
				name)
		}
		d.r.need("memory", d.line)
		*to = max(*to, n)
		if n == 0 { // 0 is all memory of a machine
			d.left = append(d.left, word)
		}
		return nil
	}
	least, _, _ := strings.Cut(value, "-")
	switch n, err := strconv.ParseUint(least, 10, 20); what {
	case "mem":
		return amount(&d.memory)
	case "mem-per-cpu":
		return amount(&d.memoryPerCPU)
	case "mem-per-gpu":
		return amount(&d.memoryPerGPU)
	case "cpus", "cpus-per-gpu":
		if err != nil || n == 0 || least != value {
			return refuse("%s is not a number of cores. Write, for example, %s=4.", clipped(word), name)
		}
		d.r.need("cpu", d.line)
		switch {
		case what == "cpus-per-gpu":
			d.cpusPerGPU = int64(n)
		case d.r.CPUs == 0:
			d.r.CPUs = float64(n)
		}
	case "nodes", "tasks":
		if err != nil || n != 1 {
			return refuse("%s: %s.", clipped(word), oneProgram)
		}
		d.left = append(d.left, word)
	case "input":
		if value != "/dev/null" {
			return refuse("%s: a job has no standard input. In the script, write < %s after the command.", clipped(word),
				clipped(value))
		}
	case "output", "errors":
		if value != "/dev/null" {
			return d.r.directive(what, name, value)
		}
		d.left = append(d.left, word) // the output goes to the log file, whose size is limited
	case "mail":
		return d.mail(word, value)
	case "export":
		return d.export(word, value)
	default:
		return d.r.directive(what, name, value)
	}
	return nil
}

// ask turns what the lines say into the request's cores and memory, unless the request sets them, and into a note about
// what has no effect.
func (d *directives) ask() {
	gpus := int64(1)
	if d.r.GPUs != nil {
		gpus = int64(max(*d.r.GPUs, 1))
	}
	if d.r.CPUs == 0 && d.cpusPerGPU > 0 {
		d.r.CPUs = float64(d.cpusPerGPU * gpus)
	}
	if d.memory == 0 {
		d.memory = max(times(d.memoryPerCPU, max(int64(d.r.CPUs), 1)), times(d.memoryPerGPU, gpus))
	}
	if d.r.Memory == 0 {
		d.r.Memory = d.memory
	}
	if len(d.left) > 0 {
		const named = 20
		if more := len(d.left) - named; more > 0 {
			d.left = append(d.left[:named:named], fmt.Sprintf("%d more", more))
		}
		d.r.note("gpulab ignores these options: " + units.List(d.left) + ".")
	}
}

// times multiplies numbers that are not negative. A product that is too large becomes the largest int64.
func times(a, b int64) int64 {
	if b > 0 && a > math.MaxInt64/b {
		return math.MaxInt64
	}
	return a * b
}

var slurmAmount = regexp.MustCompile(`^([0-9]{1,15})([KMGT]?)I?B?$`)

// slurmMemory reads an amount of memory as Slurm does, and returns bytes. A number counts MiB unless K, M, G or T
// follows it.
func slurmMemory(text string) (int64, bool) {
	parts := slurmAmount.FindStringSubmatch(strings.ToUpper(text))
	if parts == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	unit := map[string]int64{"K": 1 << 10, "": 1 << 20, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[parts[2]]
	return times(n, unit), err == nil && n <= math.MaxInt64/unit
}

// ParseMemory reads how much memory a job needs, such as 16G, or 16384 for as many MiB. It returns bytes; "" is 0. The
// error is a *JobError.
func ParseMemory(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, ok := slurmMemory(text)
	if !ok {
		return 0, refuse("%q is not an amount of memory. Write a number followed by M, G or T, such as 16G.", clipped(text))
	}
	return n, nil
}

// The mails about a job that its owner can ask for.
const (
	MailBegin     = "BEGIN"
	MailEnd       = "END"
	MailFail      = "FAIL"
	MailTimeLimit = "TIME_LIMIT"
	mailNone      = "NONE"
)

// mail reads which mails the owner wants.
func (d *directives) mail(word, value string) error {
	mail, err := ParseMail(value)
	if err != nil {
		return refuse("%s: %s", clipped(word), err.Error())
	}
	if d.r.Mail == nil {
		d.r.Mail = mail
	}
	for what := range strings.SplitSeq(strings.ToUpper(value), ",") {
		if slices.Contains(otherMails, what) {
			d.r.note("No mail is sent for " + what + " of --mail-type.")
		}
	}
	return nil
}

// otherMails are kinds of mail that only Slurm sends.
var otherMails = []string{
	"REQUEUE", "STAGE_OUT", "TIME_LIMIT_50", "TIME_LIMIT_80", "TIME_LIMIT_90", "ARRAY_TASKS", "INVALID_DEPEND",
}

// ParseMail reads which mails about a job its owner wants, as sbatch takes it. "" is nil: the owner gets the mails that
// they have chosen for all jobs. The error is a *JobError.
func ParseMail(text string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	wants := map[string]bool{}
	for what := range strings.SplitSeq(strings.ToUpper(text), ",") {
		switch what = strings.TrimSpace(what); {
		case what == "ALL":
			wants[MailBegin], wants[MailEnd], wants[MailFail] = true, true, true
		case slices.Contains([]string{MailBegin, MailEnd, MailFail, MailTimeLimit}, what):
			wants[what] = true
		case what != mailNone && !slices.Contains(otherMails, what):
			return nil, refuse("The types of mail are BEGIN, END, FAIL, TIME_LIMIT, ALL and NONE.")
		}
	}
	if len(wants) == 0 {
		return []string{mailNone}, nil
	}
	return slices.Sorted(maps.Keys(wants)), nil
}

// export reads the variables that a script sets for its job.
func (d *directives) export(word, value string) error {
	var missing []string
	for part := range strings.SplitSeq(value, ",") {
		name, text, has := strings.Cut(strings.TrimSpace(part), "=")
		switch {
		case !has && slices.Contains([]string{"ALL", "NONE", "NIL", ""}, strings.ToUpper(name)):
			if name != "" {
				d.left = append(d.left, "--export="+name)
			}
		case !environmentName.MatchString(name) || len(name) > 200:
			return refuse("%s: %s is not a valid variable name. Write --export=NAME=VALUE.", clipped(word), clipped(name))
		case !has:
			missing = append(missing, clipped(name))
		default:
			if d.r.Env == nil {
				d.r.Env = map[string]string{}
			}
			if _, said := d.r.Env[name]; !said {
				d.r.Env[name] = text
			}
		}
	}
	if len(missing) > 0 {
		d.r.note("--export copies no variables from the computer that submits the job. Write " + missing[0] + "=VALUE for " +
			units.List(missing) + ".")
	}
	return nil
}

// slurmEnv returns the variables of Slurm that follow from the launch. jobrun.py adds those that only the pod knows.
func (l Launch) slurmEnv(profile Profile) map[string]string {
	env := map[string]string{
		"SLURM_JOB_USER": l.Handle, "SLURM_JOB_PARTITION": profile.Slug, "SLURM_JOB_ACCOUNT": l.Handle,
	}
	if profile.CPUs > 0 {
		cores := strconv.Itoa(max(int(profile.CPUs), 1))
		for _, name := range []string{"SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"} {
			env[name] = cores
		}
	}
	if q, err := resource.ParseQuantity(profile.Memory); err == nil {
		env["SLURM_MEM_PER_NODE"] = strconv.FormatInt(q.Value()>>20, 10)
	}
	if l.GPUs > 0 {
		var numbers []string
		for n := range l.GPUs {
			numbers = append(numbers, strconv.Itoa(n))
		}
		env["SLURM_GPUS"], env["SLURM_GPUS_ON_NODE"], env["SLURM_JOB_GPUS"] = strconv.Itoa(l.GPUs), strconv.Itoa(l.GPUs),
			strings.Join(numbers, ",")
	}
	return env
}

// slurmEnv returns the variables in which Slurm describes an array to its elements.
func (a Array) slurmEnv() map[string]string {
	if len(a.Tasks) == 0 {
		return nil
	}
	step := 1
	if len(a.Tasks) > 1 {
		step = a.Tasks[1] - a.Tasks[0]
	}
	return map[string]string{
		"SLURM_ARRAY_TASK_COUNT": strconv.Itoa(len(a.Tasks)), "SLURM_ARRAY_TASK_MIN": strconv.Itoa(a.Tasks[0]),
		"SLURM_ARRAY_TASK_MAX": strconv.Itoa(a.Tasks[len(a.Tasks)-1]), "SLURM_ARRAY_TASK_STEP": strconv.Itoa(step),
	}
}
