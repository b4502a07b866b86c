package notebooks

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// readScript checks the script and takes its directives for what was not asked
// for otherwise.
func (r *JobRequest) readScript() error {
	if len(r.Script) > MaxScript {
		return refuse("The script is longer than %d KiB. Keep the program in a file of your home, and let the script start it.", MaxScript>>10)
	}
	if !utf8.ValidString(r.Script) || strings.ContainsRune(r.Script, 0) {
		return refuse("This is no text of a script. To run a program, write a script that starts it.")
	}
	// An editor of Windows leaves marks that no shell takes.
	r.Script = strings.ReplaceAll(strings.TrimPrefix(r.Script, "\ufeff"), "\r\n", "\n")
	lines := strings.Split(r.Script, "\n")
	command := slices.IndexFunc(lines, func(line string) bool {
		line = strings.TrimSpace(line)
		return line != "" && !strings.HasPrefix(line, "#")
	})
	if command < 0 {
		return refuse("The script has no command in it, only comments.")
	}
	for i, line := range lines {
		number := i + 1
		rest, isOurs := strings.CutPrefix(line, "#GPULAB")
		if !isOurs {
			if rest, isOurs = strings.CutPrefix(line, "#SBATCH"); !isOurs || i > command {
				continue // as with sbatch, which takes them for comments there
			}
		}
		if rest != "" && !unicode.IsSpace(rune(rest[0])) {
			continue
		}
		if i > command {
			return refuse("Line %d: directives stand before the first command, which is in line %d.", number, command+1)
		}
		words, err := directiveWords(rest)
		if err == nil {
			err = r.directives(words)
		}
		if err != nil {
			return refuse("Line %d: %s", number, err.Error())
		}
	}
	return nil
}

// directiveWords splits a directive as a shell does, without variables.
func directiveWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote := false, rune(0)
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(c)
		case c == '"' || c == '\'':
			in, quote = true, c
		case unicode.IsSpace(c):
			if in {
				words = append(words, word.String())
			}
			word.Reset()
			in = false
		case c == '#' && !in:
			return words, nil // a comment
		default:
			in = true
			word.WriteRune(c)
		}
	}
	if quote != 0 {
		return nil, refuse("a quotation mark %c is missing its partner.", quote)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// directiveNames are what directives can say, by all their names.
var directiveNames = map[string]string{
	"--gpus": "gpus", "-G": "gpus", "--gres": "gres", "--gpus-per-node": "gpus",
	"--time": "time", "-t": "time",
	"--name": "name", "--job-name": "name", "-J": "name",
	"--output": "output", "-o": "output",
	"--profile": "profile",
	"--chdir":   "dir", "-D": "dir",
	"--env":   "environment",
	"--after": "after", "--dependency": "after", "-d": "after",
	"--retries": "retries",
	"--array":   "array", "-a": "array",
	"--preemptible": "preemptible",
}

// notTaken are words of sbatch that stand for something else here.
var notTaken = map[string]string{
	"--requeue":    "--preemptible lets a job give way to others and run again later, and --retries=N lets it run again when it fails",
	"--no-requeue": "no job is run again unless it says so, with --preemptible or --retries=N",
}

func (r *JobRequest) directives(words []string) error {
	for i := 0; i < len(words); i++ {
		name, value, has := strings.Cut(words[i], "=")
		if !strings.HasPrefix(name, "--") && len(name) > 2 && strings.HasPrefix(name, "-") && !has {
			name, value, has = words[i][:2], words[i][2:], true // -t30
		}
		what, known := directiveNames[name]
		if instead := notTaken[name]; instead != "" {
			return refuse("%s is nothing that gpulab knows: %s.", name, instead)
		}
		if what == "preemptible" && !has {
			value, has = "yes", true
		}
		if !known {
			return refuse("%s is nothing that gpulab knows. Take it out. Directives are --gpus, --gres=gpu:N, --time, --job-name, --output, --chdir, --env, --dependency, --retries, --array, --preemptible and --profile.", clipped(words[i]))
		}
		if !has {
			if i++; i == len(words) {
				return refuse("%s needs a value, such as %s=%s.", name, name, map[string]string{"gpus": "1", "gres": "gpu:1", "time": "2:00:00", "name": "train", "output": "train.log", "profile": "gpu", "dir": "work", "environment": "pytorch", "after": "afterok:12", "retries": "3", "array": "0-9"}[what])
			}
			value = words[i]
		}
		if err := r.directive(what, name, value); err != nil {
			return err
		}
	}
	return nil
}

// directive sets what was not asked for otherwise.
func (r *JobRequest) directive(what, name, value string) error {
	switch what {
	case "gres":
		rest, ok := strings.CutPrefix(value, "gpu")
		if !ok || rest != "" && rest[0] != ':' {
			return refuse("%s=%s asks for something else than GPUs; write %s=gpu:1.", name, clipped(value), name)
		}
		value = strings.TrimPrefix(rest, ":")
		if value == "" {
			value = "1"
		}
		fallthrough
	case "gpus":
		if model, _, has := strings.Cut(value, ":"); has {
			return refuse("%s names the GPU model %s; in gpulab a profile does that, such as --profile=gpu. `gpulab profiles` lists them.", name, clipped(model))
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return refuse("%s=%s is no number of GPUs.", name, clipped(value))
		}
		if r.GPUs == nil {
			r.GPUs = &n
		}
	case "time":
		limit, err := ParseJobTime(value)
		if err != nil {
			return err
		}
		if r.Limit == 0 {
			r.Limit = limit
		}
	case "name":
		setIfEmpty(&r.Name, value)
	case "output":
		setIfEmpty(&r.Output, value)
	case "profile":
		setIfEmpty(&r.Profile, value)
	case "dir":
		setIfEmpty(&r.Dir, value)
	case "environment":
		setIfEmpty(&r.Environment, value)
	case "array":
		if _, err := ParseArray(value); err != nil {
			return err
		}
		setIfEmpty(&r.Array, value)
	case "retries":
		n, err := strconv.Atoi(value)
		if err != nil {
			return refuse("%s=%s is no number of times.", name, clipped(value))
		}
		if r.Retries == nil {
			r.Retries = &n
		}
	case "preemptible":
		if value != "yes" && value != "no" {
			return refuse("%s=%s is neither yes nor no; %[1]s alone is enough.", name, clipped(value))
		}
		if r.Preemptible == nil {
			r.Preemptible = new(value == "yes")
		}
	case "after":
		after, err := ParseDependencies(value)
		if err != nil {
			return err
		}
		if r.After == nil {
			r.After = after
		}
	}
	return nil
}

func setIfEmpty(to *string, value string) {
	if *to == "" {
		*to = value
	}
}

// ParseJobTime reads a time limit as gpulab writes it, 2h30m or 3d, or as sbatch
// takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours,
// days-hours:minutes or days-hours:minutes:seconds.
func ParseJobTime(text string) (time.Duration, error) {
	wrong := refuse("%q is no time limit; write 2h, 90m, 3d, or hours:minutes:seconds.", clipped(text))
	days, rest, hasDays := strings.Cut(text, "-")
	if !hasDays {
		if n, ok := strings.CutSuffix(text, "d"); ok {
			days, rest = n, ""
		} else if d, err := time.ParseDuration(text); err == nil && d > 0 {
			return d, nil
		} else {
			days, rest = "0", text
		}
	}
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, wrong
	}
	total := time.Duration(n) * 24 * time.Hour
	var scale []time.Duration
	parts := strings.Split(rest, ":")
	switch {
	case rest == "":
		parts = nil
	case hasDays:
		scale = []time.Duration{time.Hour, time.Minute, time.Second}
	case len(parts) == 3:
		scale = []time.Duration{time.Hour, time.Minute, time.Second}
	default:
		scale = []time.Duration{time.Minute, time.Second}
	}
	if len(parts) > len(scale) {
		return 0, wrong
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 24)
		if err != nil {
			return 0, wrong
		}
		total += time.Duration(n) * scale[i]
	}
	if total <= 0 {
		return 0, wrong
	}
	return total, nil
}

// belowHome makes a path relative to the home of handle; "" is the home itself.
func belowHome(text, handle, what string) (string, error) {
	text = strings.TrimSpace(text)
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) || len(text) > 500 {
		return "", refuse("%s has to be a path of at most 500 visible characters.", what)
	}
	home := "/home/" + handle
	if text == "~" || strings.HasPrefix(text, "~/") {
		text = home + text[1:]
	}
	if !path.IsAbs(text) {
		text = home + "/" + text
	}
	clean := path.Clean(text)
	if clean == home {
		return "", nil
	}
	below, ok := strings.CutPrefix(clean, home+"/")
	if !ok {
		return "", refuse("%s has to lie in the home, %s, and %s does not.", what, home, clipped(clean))
	}
	return below, nil
}

// outputFile is the file of a job's log, below the home. In a pattern %j is the
// job's number and %x its name, as with sbatch; of an element of an array, which
// element is, %A is the array's number and %a its own there.
func outputFile(pattern, handle, name string, id int64, element *Job) (string, error) {
	if pattern == "" {
		stem := slug(name)
		if stem == "" {
			stem = "job"
		}
		if element != nil {
			return fmt.Sprintf("jobs/%s-%d_%d.log", stem, element.ArrayJob, element.ArrayTask), nil
		}
		return fmt.Sprintf("jobs/%s-%d.log", stem, id), nil
	}
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			b.WriteByte(pattern[i])
			continue
		}
		i++
		switch {
		case i < len(pattern) && pattern[i] == 'j':
			fmt.Fprint(&b, id)
		case i < len(pattern) && pattern[i] == 'A' && element != nil:
			fmt.Fprint(&b, element.ArrayJob)
		case i < len(pattern) && pattern[i] == 'a' && element != nil:
			fmt.Fprint(&b, element.ArrayTask)
		case i < len(pattern) && pattern[i] == 'x':
			b.WriteString(strings.ReplaceAll(name, "/", "-"))
		case i < len(pattern) && pattern[i] == '%':
			b.WriteByte('%')
		default:
			return "", refuse("In the name of a job's output file, %%j is the job's number and %%x its name, and in an array %%A its number and %%a the element's; nothing else begins with %%.")
		}
	}
	if strings.HasSuffix(pattern, "/") {
		return "", refuse("The output of a job is a file, and %s is a folder.", clipped(pattern))
	}
	file, err := belowHome(b.String(), handle, "The output file of a job")
	if err == nil && file == "" {
		err = refuse("The output of a job is a file in the home.")
	}
	return file, err
}
