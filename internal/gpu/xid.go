package gpu

import "fmt"

// Severity says who has to do something about an XID.
type Severity string

// The severities.
const (
	SeverityNote    Severity = "note"    // nothing is broken
	SeverityProgram Severity = "program" // a program failed, most likely of its own
	SeverityReset   Severity = "reset"   // the GPU works again after a reset or a reboot
	SeverityRepair  Severity = "repair"  // the hardware may be failing
	SeverityUnknown Severity = "unknown" // this version has no word about it
)

// XIDMeaning explains an XID, the number under which NVIDIA's driver reports an
// error.
type XIDMeaning struct {
	XID uint64 `json:"xid"`
	// Title is a few words, Meaning and Do are sentences for people: what
	// happened and what to do now.
	Title    string   `json:"title"`
	Meaning  string   `json:"meaning"`
	Do       string   `json:"do"`
	Severity Severity `json:"severity"`
}

const (
	doProgram = "Have its owner look at the program's last messages and run it again; compute-sanitizer finds such " +
		"mistakes. If different programs fail on this GPU alone, look at the card."
	doReset = "End what uses the GPU and reset it (nvidia-smi --gpu-reset -i NUMBER), or reboot the machine."
	doAgain = " If it comes back, update the driver; if it still does, have the card looked at."
)

// xids are the errors that labs meet, in our words after NVIDIA's public
// documentation, "XID Errors" (docs.nvidia.com/deploy/xid-errors).
var xids = map[uint64]XIDMeaning{
	8: {Title: "GPU stopped responding to a program", Meaning: "Work on the GPU did not end in time.", Do: doProgram,
		Severity: SeverityProgram},
	13: {Title: "Error in a program on the GPU", Meaning: "The GPU's engine met an instruction or an access it cannot " +
		"carry out, most often an index beyond the end of an array. The program has failed, the GPU goes on.", Do: doProgram,
		Severity: SeverityProgram},
	31: {Title: "Access to memory that is not there", Meaning: "A program used an address of GPU memory that does not " +
		"belong to it. The program has failed, the GPU goes on.", Do: doProgram, Severity: SeverityProgram},
	32: {Title: "Damaged commands to the GPU", Meaning: "Commands arrived at the GPU in a state it could not read: a " +
		"mistake in the driver, or a bad connection of the card.",
		Do:       doReset + " If it comes back, look at the card's slot and power, and update the driver.",
		Severity: SeverityReset},
	38: {Title: "Error in the driver's firmware", Meaning: "The firmware that the driver loads into the GPU failed.",
		Do: doReset + doAgain, Severity: SeverityReset},
	43: {Title: "A program was stopped on the GPU", Meaning: "A program made a mistake and its work on the GPU was " +
		"ended. The GPU goes on.", Do: doProgram, Severity: SeverityProgram},
	45: {Title: "A program's work was cleared away", Meaning: "What a program had on the GPU was taken away, because " +
		"it was ended or after another error; look for an earlier error of this GPU.",
		Do: "Nothing, if somebody ended the program. Otherwise follow the error before it.", Severity: SeverityNote},
	46: {Title: "GPU stopped processing", Meaning: "The GPU did not go on with its work.", Do: doReset + doAgain,
		Severity: SeverityReset},
	48: {Title: "Memory error that could not be corrected", Meaning: "Two bits of the GPU's memory were wrong at " +
		"once. Programs that used it have failed, and what they computed last is not to be trusted.",
		Do: doReset + " If it comes back, have the card replaced.", Severity: SeverityRepair},
	56: {Title: "Error of the display engine", Meaning: "The part of the GPU that drives screens failed.",
		Do: doReset + doAgain, Severity: SeverityReset},
	61: {Title: "The GPU's own controller stumbled", Meaning: "A small processor inside of the GPU reported a fault " +
		"of its firmware.", Do: doReset + doAgain, Severity: SeverityReset},
	62: {Title: "The GPU's own controller stopped", Meaning: "A small processor inside of the GPU, which minds its " +
		"clocks and power, has halted.", Do: doReset + doAgain, Severity: SeverityReset},
	63: {Title: "A bad place in memory was noted", Meaning: "The GPU has found a bad place in its memory and will not " +
		"use it any more. It is in force after the next reset.", Do: "Reset the GPU or reboot the machine when nobody " +
		"uses it. No haste.", Severity: SeverityNote},
	64: {Title: "A bad place in memory could not be noted", Meaning: "The GPU has found a bad place in its memory and " +
		"could not take it out of use, perhaps because there are too many.",
		Do: doReset + " If it comes back, have the card replaced.", Severity: SeverityRepair},
	68: {Title: "Error of the video decoder", Meaning: "Decoding a video failed, because of the program, its data or " +
		"the driver. The GPU goes on.", Do: doProgram, Severity: SeverityProgram},
	69: {Title: "Command that the GPU does not know", Meaning: "The GPU's engine was given a command of a kind it " +
		"does not have, by a program or a driver that does not fit.", Do: doProgram, Severity: SeverityProgram},
	74: {Title: "Error of a link between GPUs", Meaning: "The NVLink connection to another GPU failed. Programs on " +
		"more than one GPU may have failed with it.", Do: doReset + " If it comes back, look at the bridges between the " +
		"cards and how they sit.", Severity: SeverityRepair},
	79: {Title: "GPU has fallen off the bus", Meaning: "The machine cannot reach the card any more: power, heat, the " +
		"slot, or the card itself. Everything on it has failed.", Do: "Reboot the machine, better by switching it off. If " +
		"it happens again, look at the card's power cables, slot and temperature, and try it in another machine.",
		Severity: SeverityRepair},
	92: {Title: "Many corrected memory errors", Meaning: "Single bits of the GPU's memory are wrong more often than " +
		"they should be. They were corrected, so no result is wrong.",
		Do:       "Watch the card's error counts. If an error comes that could not be corrected, have the card replaced.",
		Severity: SeverityNote},
	94: {Title: "Memory error kept to one program", Meaning: "The GPU's memory had an error that could not be " +
		"corrected. Only the program that used it has failed.", Do: "Start that program again. Reset the GPU or reboot " +
		"the machine when nobody uses it, so that the bad place is taken out of use.", Severity: SeverityReset},
	95: {Title: "Memory error that may have reached all programs",
		Meaning: "The GPU's memory had an error that could not be corrected nor kept to one program. All programs on this " +
			"GPU have failed or will.", Do: doReset + " If it comes back, have the card replaced.", Severity: SeverityRepair},
	109: {Title: "Changing between programs took too long", Meaning: "The GPU could not pass from one program to the " +
		"next in time, and ended one of them.", Do: doProgram, Severity: SeverityProgram},
	110: {Title: "The GPU's security engine failed", Meaning: "A check inside of the GPU failed.",
		Do: "Switch the machine off and on again." + doAgain, Severity: SeverityRepair},
	119: {Title: "The GPU's firmware does not answer", Meaning: "The driver waited in vain for the processor in the " +
		"GPU that does most of its work (GSP). The GPU often cannot be used until it is reset.", Do: doReset + doAgain,
		Severity: SeverityReset},
	120: {Title: "The GPU's firmware failed", Meaning: "The processor in the GPU that does most of the driver's work " +
		"(GSP) reported an error.", Do: doReset + doAgain, Severity: SeverityReset},
	121: {Title: "Error of the link to the processor",
		Meaning: "The connection between GPU and processor (C2C) had an error.", Do: doReset + doAgain,
		Severity: SeverityReset},
	137: {Title: "Access over a link was refused", Meaning: "A program used another GPU's memory over NVLink in a way " +
		"it may not.", Do: doProgram, Severity: SeverityProgram},
	140: {Title: "Memory error the GPU has not recovered from",
		Meaning: "The GPU's memory had an error that could not be corrected, and the GPU could not put it right.",
		Do:      doReset + " If it comes back, have the card replaced.", Severity: SeverityRepair},
	143: {Title: "GPU could not be started", Meaning: "The driver failed to bring the card into service.",
		Do: "Reboot the machine, better by switching it off." + doAgain, Severity: SeverityRepair},
	154: {Title: "The driver asks for another way to recover", Meaning: "What the GPU needs to work again has changed; " +
		"the driver says what, and gpulab shows it beside the GPU.",
		Do: "Do what is shown beside the GPU: reset it, or reboot the machine.", Severity: SeverityReset},
}

// ExplainXID says what an XID means and what to do about it, also for one that
// is not in the list.
func ExplainXID(xid uint64) XIDMeaning {
	m, known := xids[xid]
	if !known {
		m = XIDMeaning{
			Title:   fmt.Sprintf("Error %d", xid),
			Meaning: "NVIDIA's driver has reported an error that this version of gpulab has no explanation of.",
			Do: "Look the number up in NVIDIA's documentation (docs.nvidia.com/deploy/xid-errors), and in the kernel's " +
				"log beside the word Xid.",
			Severity: SeverityUnknown,
		}
	}
	m.XID = xid
	return m
}
