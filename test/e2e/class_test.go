//go:build e2e

package e2e

import (
	"fmt"
	"html"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestClass is a lab whose admin brings in a class from a list: all of it at work, each in a browser of their own.
//
//test:alone
//test:about internal/users
func TestClass(t *testing.T) {
	// Not beside others: thirty browsers and notebooks need what processors there are.
	ready(t, classConfig).live(t, []chapter{
		{"a class from a list", testClassFromList, false},
	})
}

// classConfig lets thirty notebooks onto two cores.
const classConfig = `
lab: Class lab
gpus: simulated
simulatedGPUs: 2
signUp: approval
profiles:
  - {slug: cpu, title: CPU notebook, cpus: 2, memory: 2Gi, cpuRequest: 0.01, memoryRequest: 128Mi}
  - {slug: gpu, title: GPU notebook, cpus: 2, memory: 4Gi, gpus: 1, cpuRequest: 0.01, memoryRequest: 128Mi}
`

const (
	// classSize is how many people the list has; all of them start a notebook.
	classSize = 30
	// classCells is how many of them run a cell in JupyterLab, which takes ten seconds of two processors each.
	classCells = 10
)

// studentPassword is what the students of the list choose.
func studentPassword(handle string) string { return "a password for " + handle }

var slipPattern = regexp.MustCompile(`<dd class="mono">([a-z0-9-]+)</dd>(?s:.*?)<dd class="mono">(https://[^<]+)</dd>`)

// classList is a list of n people, as a spreadsheet writes it.
func classList(n int) string {
	list := "\ufeffName;Notes;Email\r\n"
	for i := range n {
		list += fmt.Sprintf("\"Student, Number %d\";x;s%d@lab.example\r\n", i+1, i+1)
	}
	return list
}

// mostClicks is how many a class may take from the list until a student works.
const mostClicks = 9

// testClassFromList: a list becomes a class at work. Everybody in it has a
// browser of their own.
func testClassFromList(t *testing.T, a *appliance) {
	list := classList(classSize)
	b := a.browser.For(t).Tab()
	fill := func(text string) {
		b.WaitFor("the form", `(() => { const f = document.querySelector("#text"); if (!f) return false; f.value = `+strconv.Quote(text)+`; document.querySelector("#new-group").value = "seminar"; return true })()`)
	}
	b.Open(pages + "/users/import")
	fill(list + "\"An unfinished row;x;y\r\n")
	b.Click("main", "See what would happen")
	b.WaitText("main", "quot")
	if got := a.MustGpulab(a.ctx, "user", "list"); strings.Contains(got, "student-number-1") {
		t.Fatalf("a list with an error was imported in part:\n%s", got)
	}
	b.Open(pages + "/")
	earlier := b.Clicks()
	b.Click("nav", "Users")
	b.Click("main", "Import a list")
	fill(list)
	b.Click("main", "See what would happen")
	b.WaitText("main", "student-number-30")
	b.Pictures("import")
	b.Click("main", "Import 30 people")
	b.WaitText("main", "The links are shown only now.")
	admins := b.Clicks() - earlier
	b.Pictures("links")
	slips := slipPattern.FindAllStringSubmatch(lab.Evaluate[string](b, `() => document.querySelector(".slips").innerHTML`), -1)
	if len(slips) != classSize {
		t.Fatalf("%d slips for %d people", len(slips), classSize)
	}
	c := class{began: time.Now(), admins: admins, hands: make(chan struct{}, 2)}
	var students sync.WaitGroup
	for _, slip := range slips {
		handle, link := slip[1], html.UnescapeString(slip[2])
		students.Go(func() { t.Run(handle, func(t *testing.T) { c.student(t, a, handle, link) }) })
	}
	students.Wait()
	a.eventually(t, "all of the class have a notebook", func() bool { return a.running(t, "Exercise") == classSize })
	if got := a.MustGpulab(a.ctx, "group", "show", "seminar"); !strings.Contains(got, "student-number-30") {
		t.Errorf("group show: %s", got)
	}
	a.checkAudited(t, "user.import")
}

// class is the students' way to work.
type class struct {
	began  time.Time
	admins int // clicks before the students' first
	// hands bounds how many of them look at their pages at once: all of them wait
	// for their notebooks together, but their browsers run on the lab's own
	// processors here.
	hands                chan struct{}
	started, cells, done atomic.Int32
}

// student follows the link of one person's slip, launches a notebook and runs a
// cell in it, in a browser with cookies of its own.
func (c *class) student(t *testing.T, a *appliance, handle, link string) {
	b := a.browser.For(t).Private().Patient(5 * lab.Patience)
	c.withHands(func() {
		choosePassword(b, link, studentPassword(handle))
		b.Fill("Title", "Exercise")
		b.Click(".launches", "Start CPU notebook")
		b.WaitFor("the progress page", `location.pathname.startsWith("/launches/") || location.pathname.startsWith("/user/")`)
		b.Open("about:blank")
	})
	c.note(t, &c.started, classSize, "have started a notebook")
	if c.cells.Add(1) > classCells {
		return
	}
	c.withHands(func() {
		b.Open(pages + "/")
		b.Click("#mine", "Open Exercise")
		waitJupyterLab(b, handle)
		if got := typeCell(b, "print(6 * 7)"); got != "42" {
			t.Errorf("the cell says %q", got)
		}
	})
	c.note(t, &c.done, classCells, "have run a cell")
	if clicks := c.admins + b.Clicks(); clicks > mostClicks {
		t.Errorf("from the list to the cell it took %d clicks: %d of the admin's and %d of the student's", clicks, c.admins, b.Clicks())
	} else if c.done.Load() == classCells {
		t.Logf("clicks: %d of the admin's, %d of each student's", c.admins, b.Clicks())
	}
}

func (c *class) withHands(work func()) {
	c.hands <- struct{}{}
	defer func() { <-c.hands }()
	work()
}

// note counts who got how far, and says when half of the class and all have.
func (c *class) note(t *testing.T, count *atomic.Int32, of int32, what string) {
	if n := count.Add(1); n == of/2 || n == of {
		t.Logf("%d students %s %s after their links were shown", n, what, time.Since(c.began).Round(time.Second))
	}
}
