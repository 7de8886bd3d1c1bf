"""One script for each shell, with all words in it: only names are asked for while somebody types.

The three work alike. From the words before the cursor comes the command, how many arguments it has,
and whether the last word is an option that wants a value; tables say what may stand there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from limpet.cli.completion.commands import CompletionWords


class Shell(StrEnum):
    """What completes."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_script(shell: Shell, commands: Mapping[str, CompletionWords]) -> str:
    """What that shell has to read."""
    return "".join(f"{line}\n" for line in _SCRIPTS[shell](commands))


# bash: 4.3 and later, without the package bash-completion.

_BASH = r"""
_limpet_names() {
    local config="" i
    for ((i = 1; i < COMP_CWORD - 1; i++)); do
        if [[ ${COMP_WORDS[i]} == --config ]]; then
            config="${COMP_WORDS[i + 1]}"
            [[ $config == = ]] && config="${COMP_WORDS[i + 2]}"
        fi
    done
    limpet __complete "$1" "$config" 2>/dev/null
}

_limpet() {
    local cur="${COMP_WORDS[COMP_CWORD]}" at="" wants="" count=0 word spec line i
    [[ $cur == = ]] && cur=""
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${COMP_WORDS[i]}"
        if [[ $word == = ]]; then
            continue
        elif [[ -n $wants ]]; then
            wants=""
        elif [[ $word == -- ]]; then
            return 0
        elif [[ $word == -* ]]; then
            [[ -n ${_limpet_values["$at $word"]+x} ]] && wants="$at $word"
        elif [[ $count == 0 && " ${_limpet_commands["$at "]} " == *" $word "* ]]; then
            at="${at:+$at }$word"
        else
            ((count++))
        fi
    done
    COMPREPLY=()
    if [[ -z $wants && $cur == -* ]]; then
        spec="=${_limpet_options["$at "]}"
    elif [[ -z $wants && $count == 0 && -n ${_limpet_commands["$at "]} ]]; then
        spec="=${_limpet_commands["$at "]}"
    else
        [[ -z $wants ]] && wants="$at $((count + 1))"
        [[ -z ${_limpet_values["$wants"]+x} ]] && wants="$at *"
        spec="${_limpet_values["$wants"]}"
    fi
    case $spec in
    =*) for line in ${spec#=}; do [[ $line == "$cur"* ]] && COMPREPLY+=("$line"); done ;;
    @*) while IFS= read -r line; do
        [[ $line == "$cur"* ]] && COMPREPLY+=("$line")
    done < <(_limpet_names "${spec#@}") ;;
    file) compopt -o filenames; while IFS= read -r line; do COMPREPLY+=("$line"); done \
        < <(compgen -f -- "$cur") ;;
    esac
    if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${cur%"${cur##*:}"}"}")
    fi
}

complete -F _limpet limpet
"""


def _bash(commands: Mapping[str, CompletionWords]) -> Iterator[str]:
    yield "# bash completion of limpet; made by `limpet completion bash`."
    for table, rows in _tables(commands).items():
        yield f"declare -gA _limpet_{table}=("
        for key, words in rows.items():
            yield f"    [{_quoted(key)}]={_quoted(words)}"
        yield ")"
    yield _BASH.rstrip()


def _tables(commands: Mapping[str, CompletionWords]) -> dict[str, dict[str, str]]:
    """Keys: the command's words and a blank, behind it the option or the argument's number."""
    return {
        "commands": {f"{at} ": " ".join(each.commands) for at, each in commands.items()},
        "options": {f"{at} ": " ".join(each.options) for at, each in commands.items()},
        "values": {
            f"{at} {key}": spec
            for at, each in commands.items()
            for key, spec in each.values.items()
        },
    }


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


# zsh

_ZSH = r"""
_limpet() {
    local at="" wants="" count=0 word spec config="" i
    for ((i = 2; i < CURRENT; i++)); do
        word="${words[i]}"
        if [[ -n $wants ]]; then
            [[ $wants == *" --config" ]] && config="${(Q)word}"
            wants=""
        elif [[ $word == -- ]]; then
            _default
            return
        elif [[ $word == --config=* ]]; then
            config="${(Q)word#--config=}"
        elif [[ $word == -* ]]; then
            (( ${+_limpet_values[$at $word]} )) && wants="$at $word"
        elif [[ $count == 0 && " ${_limpet_names_of[$at ]} " == *" $word "* ]]; then
            at="${at:+$at }$word"
        else
            ((count++))
        fi
    done
    local current="${words[CURRENT]}"
    if [[ -z $wants && $current == --*=* ]]; then
        wants="$at ${current%%=*}"
        compset -P '*='
    fi
    local -a rows
    if [[ -z $wants && $current == -* ]]; then
        rows=("${(f)_limpet_options[$at ]}")
        _describe -o option rows
        return
    elif [[ -z $wants && $count == 0 && -n ${_limpet_names_of[$at ]} ]]; then
        rows=("${(f)_limpet_commands[$at ]}")
        _describe -t commands command rows
        return
    fi
    [[ -z $wants ]] && wants="$at $((count + 1))"
    (( ${+_limpet_values[$wants]} )) || wants="$at *"
    spec="${_limpet_values[$wants]}"
    case $spec in
    '='*) rows=(${=spec[2,-1]}); compadd -a rows ;;
    '@'*)
        rows=("${(@f)$(limpet __complete "${spec[2,-1]}" "$config" 2>/dev/null)}")
        compadd -a rows
        ;;
    file) _files ;;
    esac
}

if [[ $funcstack[1] == _limpet ]]; then
    _limpet "$@"
else
    compdef _limpet limpet
fi
"""


def _zsh(commands: Mapping[str, CompletionWords]) -> Iterator[str]:
    yield "#compdef limpet"
    yield "# zsh completion of limpet; made by `limpet completion zsh`."
    tables = _tables(commands)
    tables["names_of"] = tables["commands"]
    tables["commands"] = {f"{at} ": _rows(each.commands) for at, each in commands.items()}
    tables["options"] = {f"{at} ": _rows(each.options) for at, each in commands.items()}
    for table, rows in tables.items():
        yield f"typeset -gA _limpet_{table}"
        yield f"_limpet_{table}=("
        for key, words in rows.items():
            yield f"    {_quoted(key)} {_quoted(words)}"
        yield ")"
    yield _ZSH.rstrip()


def _rows(words: Mapping[str, str]) -> str:
    return "\n".join(
        f"{word}:{meaning.replace(':', chr(92) + ':')}" for word, meaning in words.items()
    )


# fish: 3.0 and later

_FISH = r"""
function __limpet_names
    __limpet_commands $argv[1] | string replace -r "\t.*" ""
end

function __limpet_complete
    set -l at ""
    set -l wants ""
    set -l count 0
    set -l config ""
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if test -n "$wants"
            string match -q -- "* --config" "$wants"; and set config $word
            set wants ""
        else if test "$word" = --
            return
        else if string match -q -- "--config=*" $word
            set config (string replace -- --config= "" $word)
        else if string match -q -- "-*" $word
            test (__limpet_value "$at $word") != none; and set wants "$at $word"
        else if test $count = 0; and contains -- $word (__limpet_names "$at")
            set at (string trim -- "$at $word")
        else
            set count (math $count + 1)
        end
    end
    set -l current (commandline -ct)
    set -l before ""
    if test -z "$wants"; and string match -q -- "--*=*" "$current"
        set before (string replace -r -- "=.*" "=" "$current")
        set wants "$at "(string replace -r -- "=.*" "" "$current")
    else if test -z "$wants"; and string match -q -- "-*" "$current"
        __limpet_options "$at"
        return
    end
    if test -z "$wants"; and test $count = 0; and test (count (__limpet_commands "$at")) -gt 0
        __limpet_commands "$at"
        return
    end
    test -z "$wants"; and set wants "$at "(math $count + 1)
    set -l spec (__limpet_value "$wants")
    test "$spec" = none; and set spec (__limpet_value "$at *")
    switch "$spec"
        case "=*"
            printf "$before%s\n" (string split " " -- (string sub -s 2 -- "$spec"))
        case "@*"
            for name in (limpet __complete (string sub -s 2 -- "$spec") "$config" 2>/dev/null)
                printf "%s%s\n" "$before" $name
            end
        case file
            set -l begun (string replace -- "$before" "" "$current")
            __fish_complete_path "$begun" | string replace -r -- "^" "$before"
    end
end

complete -c limpet -f -a "(__limpet_complete)"
"""


def _fish(commands: Mapping[str, CompletionWords]) -> Iterator[str]:
    yield "# fish completion of limpet; made by `limpet completion fish`."
    for name in ("commands", "options"):
        yield f"function __limpet_{name}"
        yield '    switch "$argv[1]"'
        for at, each in commands.items():
            rows = each.commands if name == "commands" else each.options
            if rows:
                yield f"        case {_quoted_for_fish(at)}"
            for word, meaning in rows.items():
                yield f"            printf '%s\\t%s\\n' {word} {_quoted_for_fish(meaning)}"
        yield "    end"
        yield "end"
    yield "function __limpet_value"
    yield '    switch "$argv[1]"'
    for at, each in commands.items():
        for key, spec in each.values.items():
            yield f"        case {_quoted_for_fish(_literal(f'{at} {key}'))}"
            yield f"            echo {_quoted_for_fish(spec)}"
    yield "        case '*'"
    yield "            echo none"
    yield "    end"
    yield "end"
    yield _FISH.rstrip()


def _literal(text: str) -> str:
    """A pattern that matches that text alone: `*` is a number's place in our tables."""
    return text.replace("*", "\\*")


def _quoted_for_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SCRIPTS: dict[Shell, Callable[[Mapping[str, CompletionWords]], Iterator[str]]] = {
    Shell.BASH: _bash,
    Shell.ZSH: _zsh,
    Shell.FISH: _fish,
}
