"""The same requests in other words: two answers to choose from, a role to play, another language around them.

A router that reads the wording instead of the task fails on these.  Train, val and test have wordings of their own, and
test has languages and roles that training never sees, so that nothing measured was memorised.  Requests that carry a text
to summarize or translate keep every word of it: there, `language` asks in another language around the request only.
"""

# Templates keep one wording a line.
# ruff: noqa: E501

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence

from drafterforge.data.grammars.base import lines
from drafterforge.data.prompts import Prompt
from drafterforge.errors import ConfigError

SPLITS = ("train", "val", "test")
WITH_TEXT = ("summarization", "translation")  # domains whose requests carry a text that must stay as it is


def _templates(block: str) -> list[str]:
    """One template a line; a backslash and n is a line break."""
    return [line.replace("\\n", "\n") for line in lines(block)]


TWO_ANSWERS = {
    "train": _templates(r"""
Produce two different replies to the request below. Compare them, and repeat only the stronger one.\n\n{prompt}
{prompt}\n\nDo this twice, in two independent ways, and tell me at the end which of the two you would hand in.
I want a first attempt and a second attempt at this, followed by your verdict on which attempt wins:\n\n{prompt}
{prompt}\n\nBefore you settle on a reply, draft a version A and a version B. Finish with the version that you prefer.
Work out a pair of solutions to what follows. Judge both, drop the weaker one.\n---\n{prompt}\n---
Here is what I need:\n\n{prompt}\n\nOffer me a couple of alternatives and mark your favourite.
Answer the following in two ways, label them (1) and (2), and say which is more helpful.\n\n{prompt}
{prompt} Please come up with not one but two responses and keep the one with fewer mistakes.
Think of two people who would respond differently to this. Write down both responses and pick the more convincing.\n"{prompt}"
Your task has three steps. Step 1: respond. Step 2: respond again, differently. Step 3: choose. The request:\n{prompt}
"""),
    "val": _templates(r"""
Give me options one and two for the request at the end, then a recommendation.\n\nRequest: {prompt}
{prompt}\n\nWrite down two candidate replies and rate both from 1 to 10. The higher rating is your final reply.
First reply, second reply, decision: follow this order for the text below.\n\n{prompt}
{prompt}\n\n(Two variants, please, and a short comparison that ends with the variant you stand by.)
"""),
    "test": _templates(r"""
Generate two answers, then choose the better. {prompt}
{prompt}\n\nGenerate two answers to this, then choose the better one.
Please write two separate answers for the question below and conclude with the best of them.\n\n{prompt}
Respond to this in duplicate: one careful answer, one creative answer. Select whichever fits better.\n\n{prompt}
{prompt}\n\nDo not stop at your initial idea. Provide another, weigh the two against each other and name the winner.
Pretend that you are graded on the better of two submissions. Submit both, then point to the better.\n\n### Submission topic\n{prompt}
I will read only one of your answers. So write two, evaluate them, and tell me which I should read.\n\n{prompt}
{prompt}\nAnswer this once. Answer it again from scratch. Then decide between the answers and justify it in a sentence.
"""),
}

ROLE = {
    "train": _templates(r"""
You are {role}. Stay in character throughout.\n\n{prompt}
From now on, speak to me as {role} would.\n\n{prompt}
Act as {role} with thirty years of experience and help me with this: {prompt}
{prompt}\n\nReply in the voice of {role}.
Let us play a game: you are {role} and I am your apprentice. My first question is this.\n\n{prompt}
Imagine that {role} receives the message below. What would be the reply?\n\n{prompt}
For the rest of this conversation you take the part of {role}, patient and precise.\n\n{prompt}
Hello! I heard that you are {role}. Could you take care of the following for me?\n\n{prompt}
Persona: {role}\nTone: friendly\nMessage: {prompt}
I trust nobody but {role} with this, so be that person for me.\n{prompt}
"""),
    "val": _templates(r"""
Your name is Robin and you work as {role}. A visitor asks:\n\n{prompt}
{prompt}\n\n(Answer as though you were {role}.)
Setting: an interview with {role}. The next thing the interviewer says is:\n{prompt}
Be {role} for a moment. {prompt}
"""),
    "test": _templates(r"""
I want you to act as {role}. Do not break character.\n\n{prompt}
You have spent your whole life as {role}, and you love to assist strangers. Today a stranger says:\n\n{prompt}
{prompt}\n\nTake on the role of {role} while you answer.
System note: the assistant portrays {role}.\n\nUser: {prompt}
As {role}, you are known for clear and honest answers. Give one to the following.\n\n{prompt}
Suppose I meet {role} on a train and say the following. What do I hear back?\n\n{prompt}
Dear {role}, I need a hand with something and you are the right one to ask. {prompt}
Switch to a new personality: {role}. Once you have switched, deal with this.\n\n{prompt}
"""),
}
ROLES = {
    "train": lines("""
    a lighthouse keeper
    a retired sea captain
    an opera singer
    a mountain guide
    a pastry chef
    a museum curator
    a beekeeper
    a stage magician
    a long-distance truck driver
    a kindergarten teacher
    a medieval knight
    a wildlife photographer
    a stand-up comedian
    a watchmaker
    a fire fighter
    a grandmother of nine
    a football coach
    a wedding planner
    a film director
    a night-shift nurse
    a detective of the old school
    a robot from a distant future
    a village mayor
    a jazz pianist
    """),
    "val": lines("""
    a train conductor
    a gardener at a royal palace
    a tailor
    a radio host
    a pirate
    a ski instructor
    """),
    "test": lines("""
    a flight attendant
    an antique dealer
    a vineyard owner
    a ballet dancer
    a Viking explorer
    a hotel porter
    a shepherd in the Alps
    a crossword champion
    a talking parrot
    a diplomat
    a carpenter
    an Antarctic researcher's cook
    """),
}

# Language code, then the template.
LANGUAGE = {
    "train": _templates(r"""
de|Bitte beantworte die folgende Anfrage auf Deutsch.\n\n{prompt}
de|Ich habe eine Frage und hätte die Antwort gern in deutscher Sprache: {prompt}
de|{prompt}\n\nSchreib deine Antwort bitte vollständig auf Deutsch.
de|Kannst du mir hierbei helfen? Mein Englisch ist nicht gut, deshalb antworte mir auf Deutsch.\n\n{prompt}
fr|Réponds en français à la demande suivante.\n\n{prompt}
fr|Bonjour, pourrais-tu m'aider avec ceci ? Je préfère une réponse en français.\n\n{prompt}
fr|{prompt}\n\nMerci de rédiger toute la réponse en français.
fr|Voici ma question, et j'aimerais que tu l'expliques en français : {prompt}
es|Responde en español a lo siguiente.\n\n{prompt}
es|Hola, necesito ayuda con esto y prefiero que me contestes en español: {prompt}
es|{prompt}\n\nPor favor, escribe la respuesta completa en español.
es|Tengo una tarea para ti. Hazla y cuéntame el resultado en español.\n\n{prompt}
"""),
    "val": _templates(r"""
de|Lies dir das Folgende durch und erkläre mir die Lösung auf Deutsch:\n{prompt}
fr|{prompt}\n\nTa réponse doit être en français, s'il te plaît.
es|Lee con atención lo que sigue y contesta solo en español.\n\n{prompt}
nl|Beantwoord de volgende vraag in het Nederlands.\n\n{prompt}
"""),
    "test": _templates(r"""
de|Folgende Aufgabe soll erledigt werden, und zwar in deutscher Sprache.\n\n{prompt}
de|{prompt}\n\nAntworte nicht auf Englisch, sondern auf Deutsch.
fr|Un ami m'a posé cette question ; donne-moi de quoi lui répondre en français.\n\n{prompt}
es|¿Me puedes resolver lo que pongo abajo? Quiero leerlo en español.\n\n{prompt}
it|Per favore, rispondi in italiano alla richiesta seguente.\n\n{prompt}
it|Ciao! Ho bisogno del tuo aiuto, e vorrei la risposta in italiano: {prompt}
it|{prompt}\n\nScrivi tutta la risposta in italiano.
pt|Responda em português ao pedido abaixo.\n\n{prompt}
pt|Olá, podes ajudar-me com isto? Gostava de uma resposta em português.\n\n{prompt}
pt|{prompt}\n\nA resposta deve estar toda em português.
"""),
}

# How sentences of requests begin, English first; the rest of the sentence stays as it is.
LANGUAGES = ("de", "fr", "es", "it", "pt", "nl")
OPENINGS = {
    row[0]: dict(zip(LANGUAGES, row[1:], strict=True))
    for row in (
        [part.strip() for part in line.split("|")]
        for line in lines("""
        Write | Schreibe | Écris | Escribe | Scrivi | Escreve | Schrijf
        Explain | Erkläre | Explique | Explica | Spiega | Explica | Leg uit
        Give | Gib | Donne | Da | Dai | Dá | Geef
        Show | Zeige | Montre | Muestra | Mostra | Mostra | Toon
        Find | Finde | Trouve | Encuentra | Trova | Encontra | Vind
        Fix | Repariere | Répare | Arregla | Sistema | Conserta | Repareer
        Correct | Korrigiere | Corrige | Corrige | Correggi | Corrige | Verbeter
        Create | Erstelle | Crée | Crea | Crea | Cria | Maak
        Solve | Löse | Résous | Resuelve | Risolvi | Resolve | Los op
        Describe | Beschreibe | Décris | Describe | Descrivi | Descreve | Beschrijf
        List | Nenne | Énumère | Enumera | Elenca | Enumera | Noem
        Suggest | Schlage vor: | Propose | Propón | Proponi | Sugere | Stel voor:
        Compare | Vergleiche | Compare | Compara | Confronta | Compara | Vergelijk
        Calculate | Berechne | Calcule | Calcula | Calcola | Calcula | Bereken
        Rewrite | Formuliere um: | Reformule | Reescribe | Riscrivi | Reescreve | Herschrijf
        Tell me | Sag mir | Dis-moi | Dime | Dimmi | Diz-me | Vertel me
        Help me | Hilf mir | Aide-moi | Ayúdame | Aiutami | Ajuda-me | Help mij
        Use | Verwende | Utilise | Usa | Usa | Usa | Gebruik
        What is | Was ist | Quel est | Cuál es | Qual è | Qual é | Wat is
        What are | Was sind | Quels sont | Cuáles son | Quali sono | Quais são | Wat zijn
        How many | Wie viele | Combien de | Cuántos | Quanti | Quantos | Hoeveel
        How much | Wie viel | Combien | Cuánto | Quanto | Quanto | Hoeveel
        How do I | Wie kann ich | Comment puis-je | Cómo puedo | Come posso | Como posso | Hoe kan ik
        Can you | Kannst du | Peux-tu | Puedes | Puoi | Podes | Kun je
        Please | Bitte | S'il te plaît, | Por favor, | Per favore, | Por favor, | Alsjeblieft,
        """)
    )
}
_OPENING = re.compile(rf"(?:^|(?<=[.!?:]\s)|(?<=\n))({'|'.join(OPENINGS)})(?=\s)")
_CODE = re.compile(r"(```.*?(?:```|\Z))", re.DOTALL)


def kinds() -> list[str]:
    """The ways to rephrase."""
    return list(_KINDS)


def rephrase(
    messages: Sequence[dict[str, str]], kind: str, split: str, rng: random.Random, whole: bool = False
) -> list[dict[str, str]]:
    """The conversation with its last request in other words, drawn from the split's own wordings.

    Its content stays; `language` also translates how its sentences begin, outside of code, unless the request is to
    stay whole.
    """
    if kind not in _KINDS:
        raise ConfigError(f"no way {kind!r} to rephrase; type one of {', '.join(_KINDS)}")
    if split not in SPLITS:
        raise ConfigError(f"no split {split!r}; type one of {', '.join(SPLITS)}")
    places = [place for place, message in enumerate(messages) if message["role"] == "user"]
    if not places:
        raise ConfigError(f"nothing to rephrase: {len(messages)} messages, none of a user")
    found = [dict(message) for message in messages]
    way = _whole_in_language if whole and kind == "language" else _KINDS[kind]
    found[places[-1]]["content"] = way(found[places[-1]]["content"], split, rng)
    return found


def rephrased(prompts: Sequence[Prompt], kind: str, split: str, seed: int) -> list[Prompt]:
    """Every prompt in other words; its id, split and the seed decide which."""
    return [
        dataclasses.replace(
            prompt,
            id=f"{prompt.id}/{kind}",
            messages=tuple(
                rephrase(
                    prompt.messages,
                    kind,
                    split,
                    random.Random(f"{seed}/{split}/{kind}/{prompt.id}"),
                    whole=prompt.domain in WITH_TEXT,
                )
            ),
        )
        for prompt in prompts
    ]


def partly_rephrased(
    prompts: Sequence[Prompt], share: float, split: str, seed: int, ways: Sequence[str] | None = None
) -> list[Prompt]:
    """The prompts, in order; a share of them, evenly spaced, is rephrased, every kind (or of `ways`) in its turn."""
    ways, found = kinds() if ways is None else list(ways), []
    for place, prompt in enumerate(prompts):
        turn = int(share * place)
        if int(share * (place + 1)) > turn:
            found += rephrased([prompt], ways[turn % len(ways)], split, seed)
        else:
            found.append(prompt)
    return found


def _two_answers(text: str, split: str, rng: random.Random) -> str:
    return rng.choice(TWO_ANSWERS[split]).format(prompt=text)


def _role(text: str, split: str, rng: random.Random) -> str:
    return rng.choice(ROLE[split]).format(prompt=text, role=rng.choice(ROLES[split]))


def _language(text: str, split: str, rng: random.Random) -> str:
    language, template = rng.choice(LANGUAGE[split]).split("|", 1)
    return template.format(prompt=translated(text, language))


def _whole_in_language(text: str, split: str, rng: random.Random) -> str:
    return rng.choice(LANGUAGE[split]).partition("|")[2].format(prompt=text)


def translated(text: str, language: str) -> str:
    """The text with the first words of its requests in another language; code stays as it is."""
    parts = _CODE.split(text)
    prose = [_OPENING.sub(lambda found: OPENINGS[found[1]][language], part) for part in parts[::2]]
    parts[::2] = prose
    return "".join(parts)


_KINDS = {"two_answers": _two_answers, "role": _role, "language": _language}
