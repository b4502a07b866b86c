package simdriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Inject adds a fault to the simulation. The faults file is a list of such
// lines, oldest first; the GPUs are in the state that all of them together
// lead to, within a second, and deleting the file heals everything:
//
//	init 18          NVML cannot start: error 18, driver/library mismatch (0 heals)
//	gpu 0 lost       GPU 0 has fallen off the bus
//	gpu 0 hang       calls about GPU 0 do not return
//	gpu 0 fail 999   calls about GPU 0 return this NVML error
//	gpu 0 ok         GPU 0 is well again
//	gpu 0 xid 79     one XID error
func Inject(root, line string) error {
	if _, err := parseFault(line); err != nil {
		return err
	}
	f, err := os.OpenFile(faultsFile(root), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, line)
	return errors.Join(err, f.Close())
}

// fault is what is wrong with a GPU.
type fault struct {
	lost, hang bool
	code       int // NVML error, 0 = none
}

// faultLine is one parsed line of the faults file.
type faultLine struct {
	gpu    int // -1: the driver as a whole
	action string
	value  uint64
}

func parseFault(line string) (faultLine, error) {
	bad := fmt.Errorf("%q is no fault this simulation knows: write e.g. \"gpu 0 lost\", \"gpu 0 xid 79\" or \"init 18\"", line)
	words := strings.Fields(line)
	parsed := faultLine{gpu: -1}
	if len(words) > 2 && words[0] == "gpu" {
		n, err := strconv.ParseUint(words[1], 10, 8)
		if err != nil {
			return parsed, bad
		}
		parsed.gpu = int(n)
		words = words[2:]
	}
	if len(words) == 0 {
		return parsed, bad
	}
	parsed.action = words[0]
	arguments, known := map[string]int{"init": 1, "lost": 0, "hang": 0, "ok": 0, "fail": 1, "xid": 1}[parsed.action]
	if !known || len(words) != 1+arguments || (parsed.action == "init") != (parsed.gpu < 0) {
		return parsed, bad
	}
	if arguments == 1 {
		var err error
		if parsed.value, err = strconv.ParseUint(words[1], 10, 16); err != nil {
			return parsed, bad
		}
	}
	return parsed, nil
}

// readFaults returns the lines of the faults file, leaving out what it cannot
// read: people write into it by hand.
func readFaults(path string) ([]faultLine, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var lines []faultLine
	for line := range strings.Lines(string(text)) {
		if f, err := parseFault(line); err == nil {
			lines = append(lines, f)
		}
	}
	return lines, nil
}

// maxEvents is how many XID events the state keeps for slow readers.
const maxEvents = 32

// applyFaults replays the faults from a healthy start.
func (s *state) applyFaults(lines []faultLine) {
	s.initError = 0
	for i := range s.gpus {
		s.gpus[i].fault = fault{}
	}
	var xids uint64
	for _, l := range lines {
		if l.action == "init" {
			s.initError = int(l.value)
			continue
		}
		if l.gpu >= len(s.gpus) {
			continue
		}
		g := &s.gpus[l.gpu]
		switch l.action {
		case "lost":
			g.fault.lost = true
		case "hang":
			g.fault.hang = true
		case "fail":
			g.fault.code = int(l.value)
		case "ok":
			g.fault = fault{}
		case "xid":
			if xids++; xids > s.xidsTold {
				s.tell(l.gpu, l.value)
			}
		}
	}
	s.xidsTold = xids
}

func (s *state) tell(gpu int, xid uint64) {
	s.sequence++
	s.events = append(s.events, xidEvent{s.sequence, gpu, xid})
	if len(s.events) > maxEvents {
		s.events = s.events[len(s.events)-maxEvents:]
	}
}
