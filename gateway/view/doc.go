// Package view is a person's side of a shared session. It draws a screen model with a status line
// on their terminal, and splits their keys into input for the program and commands of the prefix
// key. It knows nothing of sessions, SSH or HTTP.
//
// No output of a program reaches a person's terminal unchanged. A Renderer writes printable UTF-8
// and the sequences of this list, where n is a number, and nothing else:
//
//	CR LF                            cursor movement; LF scrolls where it stands in the last row of the region
//	CSI n H CSI n ; n H CSI n C      cursor movement
//	CSI n SP q CSI ? 25 h CSI ? 25 l   shape of the cursor, and whether it is seen
//	CSI ... m                        colours and attributes
//	CSI K CSI 2 X                    erasing to the end of the row, and two columns
//	CSI r CSI n ; n r                scroll region
//	CSI n L CSI n M                  moving rows in it
//	CSI ? 7 h CSI ? 7 l              wrapping, which is off from Enter to Leave
//	CSI ? 1049 h CSI ? 1049 l        the alternate screen, while the program is on its own
//	CSI ? 2004 h CSI ? 2004 l        brackets around what is pasted, which are on from Enter to Leave
//	CSI ? n h CSI ? n l ESC = ESC >   the driver's input modes: 1, 9, 1000, 1002, 1003, 1004, 1005, 1006, 1015
//
// None of these makes a terminal answer, or store anything but text in its own scrollback. The
// keyboard protocols of xterm (modifyOtherKeys) and kitty are not passed on, and programs cannot
// detect them.
package view
