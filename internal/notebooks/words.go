package notebooks

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gpulab/gpulab/internal/units"
)

// startFailure says in plain words why a starting pod will not come up, "" while
// it may. The scheduler has the time unscheduled to place it.
func startFailure(p PodInfo, now time.Time, unscheduled time.Duration) string {
	switch p.WaitingReason {
	case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError":
		return imageFailure(p.Image, p.WaitingReason, p.WaitingMessage)
	case "CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError":
		return "Its container cannot be started: " + detail(p.WaitingMessage, p.WaitingReason)
	case "CrashLoopBackOff":
		return fmt.Sprintf("Its program ends right after the start (exit code %d).", p.ExitCode)
	}
	if p.Finished || p.Exited {
		_, words := endWords(p)
		return words
	}
	if p.Unschedulable != "" && !p.Scheduled && now.Sub(p.Created) > unscheduled {
		return "No machine can take it: " + p.Unschedulable
	}
	return ""
}

// ownDiskLimit matches what the kubelet says of a pod that went over its own
// bound, rather than being in the way of others.
var ownDiskLimit = regexp.MustCompile(`(?:local ephemeral storage limit|total limit of containers|` +
	`EmptyDir volume "[^"]*" exceeds the limit) "?(\d+)([KMGT]i)`)

// endWords says why a pod is over.
func endWords(p PodInfo) (code, words string) {
	switch {
	case p.StatusReason == "Evicted" && ownDiskLimit.MatchString(p.StatusMessage):
		limit := ownDiskLimit.FindStringSubmatch(p.StatusMessage)
		return EndEvicted, fmt.Sprintf("It wrote more than its %s %sB outside of its home, such as in /tmp, and was "+
			"ended. What is in the home is still there.", limit[1], limit[2])
	case p.StatusReason == "Evicted":
		return EndEvicted, "Its machine ran short of memory or disk and had to end it: " + detail(p.StatusMessage,
			"no details were given")
	case p.ExitReason == "StartError", p.ExitReason == "ContainerCannotRun":
		return EndFailed, "Its container cannot be started: " + detail(p.ExitMessage, p.ExitReason)
	case p.StatusReason == "UnexpectedAdmissionError":
		return EndFailed, "Its machine could not hand over the GPU: " + detail(p.StatusMessage, "no details were given")
	case p.StatusReason == "Terminated", p.StatusReason == "NodeShutdown", p.StatusReason == "Shutdown":
		return EndInterrupted, "It was interrupted: its machine was shut down."
	// The reason stays from a program in it that ran out of memory long before.
	case p.ExitReason == "OOMKilled" && p.ExitCode == 137 && !p.Terminating:
		return EndOutOfMemory, outOfMemory(p.MemoryLimit)
	case p.Exited && p.ExitCode == 0:
		return EndExited, "It was shut down from inside."
	case p.Exited:
		return EndExited, fmt.Sprintf("Its program ended with exit code %d.", p.ExitCode) + lastLine(p.ExitMessage)
	case p.StatusMessage != "":
		return EndInterrupted, "It was interrupted: " + p.StatusMessage
	default:
		return EndInterrupted, "It was interrupted: its pod ended without saying why."
	}
}

// escapeSequence is what a program colours its lines with for a terminal.
var escapeSequence = regexp.MustCompile("\x1b\\[[0-9;?]*[ -/]*[@-~]")

// lastLine quotes the last line of what a program said, as a sentence of its
// own, "" if it said nothing. The program is a user's: it may say anything.
func lastLine(said string) string {
	said = strings.TrimSpace(escapeSequence.ReplaceAllString(said, ""))
	line := strings.TrimSpace(said[strings.LastIndexAny(said, "\r\n")+1:])
	line = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, "\ufffd"))
	if line == "" {
		return ""
	}
	const longest = 300
	if runes := []rune(line); len(runes) > longest {
		line = string(runes[:longest]) + "…"
	}
	return " Its last line was: " + line
}

func outOfMemory(limit int64) string {
	if limit <= 0 {
		return "It ran out of memory and was ended by the system."
	}
	return fmt.Sprintf("It used more memory than its limit of %s and was ended by the system.", bytesWords(limit))
}

// memoryRanOut is said of a launch that goes on after a program in it did not.
func memoryRanOut(p PodInfo) string {
	what := "notebook"
	switch {
	case p.Port != 0:
		what = "service"
	case p.Job:
		what = "job"
	}
	if p.MemoryLimit <= 0 {
		return "Memory ran out, and a program in it was ended by the system. The " + what + " itself goes on."
	}
	return fmt.Sprintf("Memory ran out: a program in it went over the %s's limit of %s and was ended by the system. "+
		"The %[1]s itself goes on.", what, bytesWords(p.MemoryLimit))
}

func detail(message, fallback string) string {
	if message == "" {
		return fallback
	}
	return message
}

// warningWords turns the cluster's complaint about a starting pod into plain
// words where it is a known one.
func warningWords(warning string) string {
	switch {
	case strings.HasPrefix(warning, "FailedMount"), strings.HasPrefix(warning, "FailedAttachVolume"):
		return "Its home folder is not there yet. " + warning
	case strings.HasPrefix(warning, "FailedCreatePodSandBox"):
		return "The network of its machine is not ready. " + warning
	default:
		return warning
	}
}

// waitWords says why a launch waits; who holds what it waits for is in the
// launch itself (Holders). position counts from 1, and is 0 while it is not known.
func waitWords(v verdict, room Room, position int) string {
	switch {
	case len(v.cordoned) > 0 && !room.opens(v.need):
		return cordonWords(v.cordoned) + " It starts when that has changed."
	case len(room.Nodes) == 0:
		return "No machine of the lab is ready. It starts when one is."
	case v.never && (v.need.Only != "" || room.largest() == 0):
		return neverWords(v.need, room) + " Cancel it, or launch a CPU notebook."
	case v.never:
		return neverWords(v.need, room) + " It can never start like this: cancel it, or launch another notebook."
	case !room.opens(v.need):
		return "The machine that it needs is away. It starts when that is back."
	case v.need.GPUs == 1 && v.granted && v.short == shortGPU:
		return "Its turn has come. It waits until a machine that would do for it has a GPU free."
	case v.need.GPUs > 0 && v.granted && v.short == shortGPU:
		return fmt.Sprintf("Its turn has come. It waits until a machine has %s free at once.",
			gpuCount(v.need.GPUs)) + keptWords(v.kept, room)
	case v.need.GPUs > 0 && v.granted:
		return "Its turn has come. " + shortWords(v, room)
	}
	words := shortWords(v, room)
	if len(v.cordoned) > 0 {
		words += " " + cordonWords(v.cordoned)
	}
	return words + " " + placeWords(position)
}

// keptWords say what a launch that needs several GPUs has already.
func keptWords(k Kept, room Room) string {
	switch {
	case k.Machine == "":
		return ""
	case k.GPUs == 1:
		return fmt.Sprintf(" One of %s is kept for it; what gets free there comes to it.", room.called(k.Machine))
	case k.GPUs > 1:
		return fmt.Sprintf(" %d of %s are kept for it; what gets free there comes to it.", k.GPUs, room.called(k.Machine))
	}
	return fmt.Sprintf(" What gets free on %s is kept for it.", room.called(k.Machine))
}

// neverWords says why no machine could take it, and what there is instead.
func neverWords(need Need, room Room) string {
	most, unfit, anywhere := room.largest(), room.unfit(need, room.machines()), need
	anywhere.Barred = nil
	switch {
	case len(unfit) > 0 && !room.has(anywhere):
		return fmt.Sprintf("Its %s cannot use the GPUs of %s, and no other machine has what it asks for.",
			cmp.Or(need.Thing, "image"), strings.Join(unfit, ", "))
	case need.Only != "":
		return fmt.Sprintf("It starts on %s only, because its home is nowhere else, and %[1]s has no such GPUs.",
			room.called(need.Only))
	case most == 0:
		return "No machine of this lab offers a GPU now."
	case need.GPUKind != (GPUKind{}):
		return fmt.Sprintf("It asks for %s%s, and no machine of this lab has that. There are: %s.", gpuCount(need.GPUs),
			kindWords(need.GPUKind), inventory(room))
	}
	return fmt.Sprintf("It asks for %s, but no machine of this lab has more than %d.", gpuCount(need.GPUs), most)
}

// inventory lists the pool's GPUs by model.
func inventory(room Room) string {
	counts := map[string]int{}
	for _, n := range room.machines() {
		if n.Total.GPUs > 0 {
			counts[cmp.Or(n.GPUModel, "of an unknown kind")] += n.Total.GPUs
		}
	}
	var list []string
	for _, model := range slices.Sorted(maps.Keys(counts)) {
		list = append(list, fmt.Sprintf("%d × %s", counts[model], model))
	}
	return strings.Join(list, ", ")
}

// cordonWords says of machines that they take no new work, and why.
func cordonWords(list []NodeRoom) string {
	var names []string
	for _, n := range list {
		name := cmp.Or(n.Title, n.Name)
		if n.Why != "" {
			name += " (" + n.Why + ")"
		}
		names = append(names, name)
	}
	if len(names) == 1 {
		return names[0] + " takes no new work now."
	}
	return units.List(names) + " take no new work now."
}

func shortWords(v verdict, room Room) string {
	free, total := room.GPUs()
	withheld, kept := 0, 0
	for _, n := range room.Nodes {
		kept += n.Kept
		withheld += n.Withheld
	}
	switch {
	case v.short == shortGPU && v.need.Only != "" && len(room.Nodes) > 1:
		return fmt.Sprintf("It starts on %s only, because its home is nowhere else, and no GPU is free there.",
			room.called(v.need.Only))
	case v.short == shortGPU && withheld == total:
		return "No GPU is lent out now; the GPU page says why. It starts when one is."
	case v.short == shortGPU && withheld > 0:
		return fmt.Sprintf("In use: %d of %d %s. Not lent out now: %d; the GPU page says why.", total-withheld-free, total,
			manyGPUs(room), withheld)
	case v.short == shortGPU && v.need.GPUKind != (GPUKind{}):
		return fmt.Sprintf("It asks for %s%s; all of that kind are in use.", gpuCount(v.need.GPUs), kindWords(v.need.GPUKind))
	case v.short == shortGPU && free > 0 && free == kept:
		return fmt.Sprintf("All %d %s are in use, or kept for a launch before it that needs several at once.", total,
			manyGPUs(room))
	case v.short == shortGPU && free > 0:
		return fmt.Sprintf("It asks for %s; %d of %d are free, but not on one machine or not yet for it.",
			gpuCount(v.need.GPUs), free, total)
	case v.short == shortGPU && total == 1:
		return "The lab's GPU is in use."
	case v.short == shortGPU && total == 2 && !room.Shared:
		return "Both GPUs are in use."
	case v.short == shortGPU:
		return fmt.Sprintf("All %d %s are in use.", total, manyGPUs(room))
	case v.short == shortMemory:
		return fmt.Sprintf("Not enough memory is free: it needs %s on one machine.", bytesWords(v.need.Memory))
	case v.short == shortCPU:
		return fmt.Sprintf("Not enough processor time is free: it needs %.1f cores on one machine.",
			float64(v.need.MilliCPU)/1000)
	default:
		return "It waits its turn."
	}
}

func placeWords(position int) string {
	switch position {
	case 0:
		return "It is being put in line."
	case 1:
		return "It is next in line."
	case 2:
		return "One launch is ahead of it."
	default:
		return fmt.Sprintf("%d launches are ahead of it.", position-1)
	}
}

// manyGPUs names what is counted as GPUs.
func manyGPUs(room Room) string {
	if room.Shared {
		return "shares of GPUs"
	}
	return "GPUs"
}

func kindWords(k GPUKind) string {
	words := ""
	if k.Model != "" {
		words += " of the kind " + k.Model
	}
	if k.MinMemory > 0 {
		words += " with " + bytesWords(k.MinMemory) + " each"
	}
	return words
}

func gpuCount(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

func bytesWords(n int64) string { return units.Bytes(uint64(max(n, 0))) }
