package notebooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/units"
)

// Dependency is an earlier job that has to end before another one may start.
type Dependency struct {
	Job int64 `json:"job"`
	Any bool  `json:"any,omitempty"` // however it ends; it has to succeed otherwise
}

// maxAfter is how many jobs one may wait for.
const maxAfter = 100

// ParseDependencies reads whom a job waits for, as sbatch writes it:
// afterok:12:13,afterany:14. Numbers alone mean afterok.
func ParseDependencies(text string) ([]Dependency, error) {
	wrong := refuse("%q is not a list of jobs to wait for. Write their numbers, such as 12 or 12,13, or "+
		"afterok:12,afterany:13.", clipped(text))
	groups := []string{"afterok:" + strings.ReplaceAll(text, ",", ":")}
	if strings.Contains(text, "after") || strings.ContainsAny(text, "?") {
		groups = strings.Split(text, ",")
	}
	var list []Dependency
	for _, group := range groups {
		kind, numbers, _ := strings.Cut(strings.TrimSpace(group), ":")
		switch {
		case strings.Contains(group, "?"):
			return nil, refuse("gpulab does not support “?” (any of several jobs). A job waits for all jobs that it names.")
		case kind != "afterok" && kind != "afterany":
			return nil, refuse("A job cannot wait for %s. Use afterok (the job has succeeded) or afterany (the job has "+
				"ended), such as afterok:12,afterany:13.", clipped(group))
		}
		for number := range strings.SplitSeq(numbers, ":") {
			id, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			if err != nil || id < 1 {
				return nil, wrong
			}
			d := Dependency{Job: id, Any: kind == "afterany"}
			if !slices.Contains(list, d) {
				list = append(list, d)
			}
		}
	}
	if len(list) > maxAfter {
		return nil, refuse("A job waits for %d others at most.", maxAfter)
	}
	return list, nil
}

// checkAfter refuses to wait for what is no job of the user's.
func (s *Service) checkAfter(ctx context.Context, userID int64, after []Dependency) error {
	for _, d := range after {
		other, err := s.rows.get(ctx, d.Job)
		switch {
		case errors.Is(err, ErrNotFound), err == nil && (!other.IsJob() || other.UserID != userID):
			return refuse("You have no job %d that this one could wait for. `gpulab jobs` shows those that there are.", d.Job)
		case err != nil:
			return err
		}
	}
	return nil
}

// waitsFor says whom a job still waits for, "" for nobody; never is why it
// cannot start any more.
func (s *Service) waitsFor(ctx context.Context, l Launch, seen *pass) (words, never string, err error) {
	var ok, anyhow []string
	for _, d := range l.Job.After {
		other, known := seen.jobs[d.Job]
		var err error
		if !known {
			if other, err = s.rows.get(ctx, d.Job); err == nil {
				seen.jobs[d.Job] = other
			}
		}
		name := fmt.Sprintf("job %d (%s)", d.Job, other.Title)
		switch {
		case errors.Is(err, ErrNotFound):
			return "", fmt.Sprintf("It was not run: job %d, which it was to follow, is not there any more.", d.Job), nil
		case err != nil:
			return "", "", err
		case other.Active() && d.Any:
			anyhow = append(anyhow, name)
		case other.Active():
			ok = append(ok, name)
		case !d.Any && other.EndCode != EndSucceeded:
			return "", fmt.Sprintf("It was not run: it needs %s to succeed, and that %s.", name, other.endedAs()), nil
		}
	}
	var parts []string
	for _, group := range []struct {
		names     []string
		has, have string
	}{{ok, "has succeeded", "have succeeded"}, {anyhow, "has ended", "have ended"}} {
		switch len(group.names) {
		case 0:
		case 1:
			parts = append(parts, group.names[0]+" "+group.has)
		default:
			parts = append(parts, enumerated(group.names)+" "+group.have)
		}
	}
	if len(parts) > 0 {
		words = "It waits until " + strings.Join(parts, ", and until ") + "."
	}
	return words, "", nil
}

// endedAs says in the past tense how a job ended.
func (l Launch) endedAs() string {
	switch how := l.Finished(); how {
	case "cancelled", "not run":
		return "was " + how
	case "timed out":
		return "ran into its time limit"
	default:
		return "has " + how
	}
}

// enumerated lists names as a sentence does.
func enumerated(names []string) string {
	const most = 5
	if n := len(names); n > most {
		names = append(slices.Clone(names[:most-1]), fmt.Sprintf("%d more", n-most+1))
	}
	return units.List(names)
}
