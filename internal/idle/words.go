package idle

import (
	"fmt"
	"time"

	"github.com/gpulab/gpulab/internal/units"
)

const homeStays = "Files in the home folder are still there; start it again whenever you need it."

// audited is what the audit log tells; titles are their owners' own matter.
func audited(h Holding) string {
	text := fmt.Sprintf("launch %d, profile %s", h.Launch, h.Profile)
	switch h.Cause {
	case CauseAge:
		text += ", as old as one may get"
	default:
		if h.Forgotten {
			text += ", not opened when its turn had come"
			break
		}
		text += ", idle for " + units.Lasting(h.Idle)
	}
	if h.WantedBy != "" {
		text += fmt.Sprintf(", for %s (launch %d)", h.WantedBy, h.WantedLaunch)
	}
	return text
}

// stopWords is what the owner of a notebook reads that was stopped.
func stopWords(h Holding) string {
	if h.Cause == CauseAge {
		return fmt.Sprintf("It was stopped: it had run for %s, which is as long as a notebook may run here. %s",
			units.Lasting(h.Policy.MaxAge), homeStays)
	}
	if h.Forgotten {
		waited := ""
		if h.WantedBy != "" {
			waited = fmt.Sprintf(", and %s was waiting for a GPU", h.WantedBy)
		}
		return fmt.Sprintf("It was stopped: its turn had come, nobody opened it for %s%s. Start it again to stand in "+
			"line anew.",
			units.Lasting(h.Idle), waited)
	}
	if h.WantedBy == "" {
		return fmt.Sprintf("It was stopped: nobody had used its GPU for %s. %s", units.Lasting(h.Idle), homeStays)
	}
	return fmt.Sprintf("It was stopped: nobody had used its GPU for %s, and %s was waiting for one. %s",
		units.Lasting(h.Idle), h.WantedBy, homeStays)
}

// Notice is what the owner of a warned notebook reads, "" for one that is not. The end stands in it as a time of the
// day; whoever can shows a countdown beside it.
func (h Holding) Notice() string {
	if h.State != Warned {
		return ""
	}
	end := h.Ends.Local().Format("15:04:05")
	unless := "unless you use its GPU or say that you still need it"
	if !h.MayExtend() {
		unless = "unless you use its GPU"
	}
	const stays = "Files in the home folder stay."
	if h.Cause == CauseAge {
		text := fmt.Sprintf("Your notebook “%s” has run for %s, which is as long as one may run here. Save your work: it "+
			"is stopped at %s", h.Title, units.Lasting(h.Policy.MaxAge), end)
		if h.MayExtend() {
			text += " unless you say that you still need it"
		}
		return text + ". " + stays
	}
	if h.Forgotten {
		waits := ""
		if h.WantedBy != "" {
			waits = fmt.Sprintf(", and %s waits for a GPU", h.WantedBy)
		}
		unless := "unless you open it or say that you still need it"
		if !h.MayExtend() {
			unless = "unless you open it"
		}
		return fmt.Sprintf("It is your turn: your notebook “%s” has been ready for %s, nobody has opened it%s. It is "+
			"stopped at %s %s.", h.Title, units.Lasting(h.Idle), waits, end, unless)
	}
	waits := ""
	if h.WantedBy != "" {
		waits = fmt.Sprintf(", and %s waits for one", h.WantedBy)
	}
	return fmt.Sprintf("Nobody has used the GPU of your notebook “%s” for %s%s. It is stopped at %s %s. %s", h.Title,
		units.Lasting(h.Idle), waits, end, unless, stays)
}

// Brief is Notice in JupyterLab, which cuts messages off after 140 characters. A
// countdown and a button stand beside it.
func (h Holding) Brief() string {
	if h.State != Warned {
		return ""
	}
	if h.Cause == CauseAge {
		return fmt.Sprintf("Your notebook “%s” has run for %s, as long as one may here. Save your work.", h.Title,
			units.Lasting(h.Policy.MaxAge))
	}
	text := fmt.Sprintf("Nobody has used the GPU of “%s” for %s", h.Title, units.Lasting(h.Idle))
	if h.WantedBy != "" {
		text += fmt.Sprintf(", and %s waits for one", h.WantedBy)
	}
	if !h.MayExtend() {
		text += ". Use it, and it stays"
	}
	return text + "."
}

// Kept says what an extension has done.
func (h Holding) Kept() string {
	left := h.Policy.Extensions - h.Extensions
	more := "It cannot be kept again after that, unless its GPU is used"
	switch {
	case left == 1:
		more = "It can be kept once more after that"
	case left > 1:
		more = fmt.Sprintf("It can be kept %d times more after that", left)
	}
	return fmt.Sprintf("Your notebook “%s” is yours until %s at least. %s.", h.Title, h.Until.Local().Format("15:04:05"),
		more)
}

// Note is what else the owner of a launch should know of it, "" for nothing: that a GPU is about to be free for it, or
// why it was its turn.
func (s *Service) Note(launch int64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.holdings {
		if h.State == Warned && h.WantedLaunch == launch && h.Forgotten {
			return fmt.Sprintf("It was the turn of %s, who has not opened the notebook: unless that changes, the GPU is "+
				"yours soon after %s.", h.Handle, h.Ends.Local().Format("15:04:05"))
		}
		if h.State == Warned && h.WantedLaunch == launch {
			return fmt.Sprintf("%s has not used a GPU for %s and was asked: unless it is still needed, it is yours soon "+
				"after %s.", h.Handle, units.Lasting(h.Idle), h.Ends.Local().Format("15:04:05"))
		}
	}
	return s.served[launch]
}

// Warned are somebody's notebooks that are about to be stopped.
func (s *Service) Warned(userID int64) []Holding {
	var list []Holding
	for _, h := range s.Holdings() {
		if h.UserID == userID && h.State == Warned {
			list = append(list, h)
		}
	}
	return list
}

// IdlePods says of pods since when they hold GPUs without use, by UID.
func (s *Service) IdlePods() map[string]time.Time {
	out := map[string]time.Time{}
	for _, h := range s.Holdings() {
		if h.Idly() && h.PodUID != "" {
			out[h.PodUID] = h.IdleSince
		}
	}
	return out
}
