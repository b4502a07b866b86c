package notebooks

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// readers has the programs for scripts whose first line names none, by the extension of the file. bash reads the
// others.
var readers = map[string]string{".py": "python3", ".r": "Rscript", ".jl": "julia"}

// endings has the extensions for the file of a job's script, by the program that reads it.
var endings = map[string]string{"python3": ".py", "Rscript": ".R", "julia": ".jl", notebookReader: ".ipynb"}

// readScript checks the script and takes its directives for what the request does
// not set. It collects what the job cannot have in the faults.
func (r *JobRequest) readScript() error {
	if len(r.Script) > MaxScript {
		return refuse("The script is longer than %d KiB. Keep the program in a file of your home, and let the script "+
			"start it.", MaxScript>>10)
	}
	if !utf8.ValidString(r.Script) || strings.ContainsRune(r.Script, 0) {
		return refuse("The script is not a text file. To run a program, write a script that starts it.")
	}
	// An editor of Windows leaves marks that no shell takes.
	r.Script = strings.ReplaceAll(strings.TrimPrefix(r.Script, "\ufeff"), "\r\n", "\n")
	if !strings.HasPrefix(r.Script, "#!") && r.Reader == "" {
		r.Reader = readers[strings.ToLower(path.Ext(r.File))]
	}
	d := directives{r: r}
	defer d.ask()
	lines := strings.Split(r.Script, "\n")
	command := slices.IndexFunc(lines, func(line string) bool {
		line = strings.TrimSpace(line)
		return line != "" && !strings.HasPrefix(line, "#")
	})
	if command < 0 {
		return refuse("The script has no commands, only comments.")
	}
	for i, line := range lines {
		d.line = i + 1
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
			d.wrong(refuse("directives must come before the first command, which is in line %d.", command+1))
			continue
		}
		words, err := directiveWords(rest)
		d.wrong(err)
		d.read(words)
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
		return nil, refuse("a closing quotation mark %c is missing.", quote)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// directive sets what was not asked for otherwise.
func (r *JobRequest) directive(what, name, value string) error {
	switch what {
	case "gres":
		rest, ok := strings.CutPrefix(value, "gpu")
		if !ok || rest != "" && rest[0] != ':' {
			return refuse("%s=%s does not ask for GPUs. Write %s=gpu:1.", name, clipped(value), name)
		}
		value = strings.TrimPrefix(rest, ":")
		if value == "" {
			value = "1"
		}
		fallthrough
	case "gpus":
		if model, _, has := strings.Cut(value, ":"); has {
			return refuse("%s names the GPU model %s. In gpulab, the profile selects the model: write --profile=gpu, for "+
				"example. `gpulab profiles` lists them.", name, clipped(model))
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return refuse("%s=%s is not a number of GPUs.", name, clipped(value))
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
	case "errors":
		setIfEmpty(&r.Errors, value)
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
			return refuse("%s=%s is not a number of retries.", name, clipped(value))
		}
		if r.Retries == nil {
			r.Retries = &n
		}
	case "preemptible":
		if value != "yes" && value != "no" {
			return refuse("%s=%s is neither yes nor no. %[1]s alone means yes.", name, clipped(value))
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
	wrong := refuse("%q is not a time limit. Write 2h, 90m, 3d, or hours:minutes:seconds.", clipped(text))
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
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool {
		return !unicode.IsPrint(r)
	}) || len(text) > 500 {
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
	if slices.ContainsFunc(strings.Split(clean, "/"), func(part string) bool { return len(part) > maxFileName }) {
		return "", refuse("%s has a name that is longer than %d bytes.", what, maxFileName)
	}
	below, ok := strings.CutPrefix(clean, home+"/")
	if !ok {
		return "", refuse("%s has to lie in the home, %s, and %s does not.", what, home, clipped(clean))
	}
	return below, nil
}

// maxFileName is how long the name of a file may be, in bytes, with room for an extension that gpulab adds. maxStem is
// how much of that a job's name may take.
const (
	maxFileName = 250
	maxStem     = 160
)

// fileStem turns a job's name into a part of its log's name: in lower case, with letters and signs of any writing
// system, and a hyphen in place of spaces and other ASCII characters. It returns "job" if nothing is left.
func fileStem(name string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(norm.NFC.String(name)) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r > unicode.MaxASCII && unicode.IsGraphic(r) && !unicode.IsSpace(r):
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return cmp.Or(strings.Trim(cutBytes(b.String(), maxStem), "-"), "job")
}

// fileName turns a job's name into the name of a file.
func fileName(name string) string {
	name = cutBytes(strings.ReplaceAll(norm.NFC.String(name), "/", "-"), maxStem)
	if strings.Trim(name, ".") == "" {
		return "job"
	}
	return name
}

// cutBytes cuts a text to at most so many bytes, and cuts no character in two.
func cutBytes(text string, most int) string {
	for len(text) > most {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

var digits = regexp.MustCompile(`[0-9]+`)

// patternOf makes a pattern of the name of a job's file, for outputFile: the number of the job becomes %j, and
// that of its array becomes %A.
func patternOf(file string, l Launch) string {
	return digits.ReplaceAllStringFunc(strings.ReplaceAll(file, "%", "%%"), func(number string) string {
		width := ""
		if len(number) <= 10 && number[0] == '0' {
			width = strconv.Itoa(len(number))
		}
		switch n, err := strconv.ParseInt(number, 10, 64); {
		case err != nil || n == 0:
		case n == l.ID:
			return "%" + width + "j"
		case n == l.Job.ArrayJob:
			return "%" + width + "A"
		}
		return number
	})
}

// outputFile returns the file of a job's log, below the home. In a pattern, as with
// sbatch, %j is the job's number, %x its name and %u its owner. element is nil unless
// the job is an element of an array: then %A is the array's number and %a the element's.
func outputFile(pattern, handle, name string, id int64, element *Job) (string, error) {
	if pattern == "" {
		if element != nil {
			return fmt.Sprintf("jobs/%s-%d_%d.log", fileStem(name), element.ArrayJob, element.ArrayTask), nil
		}
		return fmt.Sprintf("jobs/%s-%d.log", fileStem(name), id), nil
	}
	// A job has one step, one task and one machine, which is not known yet: their patterns mean the same for every job.
	stands := map[byte]string{
		'j': strconv.FormatInt(id, 10), 'A': strconv.FormatInt(id, 10), 'J': strconv.FormatInt(id, 10), 'x': fileName(name),
		'u': handle,
		'N': "lab", 's': "batch", 'n': "0", 't': "0", '%': "%",
	}
	if element != nil {
		stands['A'], stands['a'] = strconv.FormatInt(element.ArrayJob, 10), strconv.Itoa(element.ArrayTask)
	}
	var b strings.Builder
	for i := 0; i < len(pattern); i++ {
		if pattern[i] != '%' {
			b.WriteByte(pattern[i])
			continue
		}
		width := 0 // to which zeros fill up a number
		for i++; i < len(pattern) && pattern[i] >= '0' && pattern[i] <= '9' && width < 10; i++ {
			width = 10*width + int(pattern[i]-'0')
		}
		if i == len(pattern) || stands[pattern[i]] == "" {
			return "", refuse("In the name of a job's output file, %%j is the job's number, %%x its name and %%u its owner, "+
				"and in an array %%A its number and %%a the element's; %%%% is a %%. %s has something else.", clipped(pattern))
		}
		word := stands[pattern[i]]
		if strings.IndexByte("jAaJnt", pattern[i]) >= 0 {
			b.WriteString(strings.Repeat("0", max(min(width, 10)-len(word), 0)))
		}
		b.WriteString(word)
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
