# ruff: noqa: RUF001  # other alphabets are what this is about
"""Chats in many languages and in code, made here: nothing is downloaded, and a seed decides all.

Sentences are short and everyday.  A chat draws some of one kind, in one to eight messages, as a
client would send them: UTF-8 as it is, or with every character beyond ASCII escaped.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SENTENCES: Final[dict[str, Sequence[str]]] = {
    "english": (
        "The committee postponed its decision until every witness had been heard.",
        "Can you explain how photosynthesis works in simple terms?",
        "She walked along the river because the evening was warm and quiet.",
        "Please summarise the following report in three short bullet points.",
        "Interest rates rose again, which surprised most economists.",
        "I would like to book a table for four people at seven o'clock.",
        "The engine failed twice before anyone noticed the leaking valve.",
        "What is the difference between a virus and a bacterium?",
    ),
    "german": (
        "Der Ausschuss verschob seine Entscheidung, bis alle Zeugen gehört worden waren.",
        "Könntest du mir bitte erklären, wie die Photosynthese funktioniert?",
        "Die Straßenbahn fährt heute wegen Bauarbeiten nur bis zum Rathausplatz.",
        "Bitte fassen Sie den folgenden Bericht in drei kurzen Sätzen zusammen.",
        "Überraschenderweise stiegen die Zinsen im vergangenen Quartal erneut.",
    ),
    "french": (
        "Le comité a reporté sa décision jusqu'à ce que tous les témoins soient entendus.",
        "Peux-tu m'expliquer simplement comment fonctionne la photosynthèse ?",
        "Elle marchait le long de la rivière, car la soirée était douce.",
        "Veuillez résumer le rapport suivant en trois phrases très courtes.",
        "Où se trouve la bibliothèque la plus proche de la gare ?",
    ),
    "polish": (
        "Komisja odłożyła decyzję do czasu przesłuchania wszystkich świadków.",
        "Czy możesz wyjaśnić prostymi słowami, jak działa fotosynteza?",
        "Szła wzdłuż rzeki, ponieważ wieczór był ciepły i cichy.",
        "Proszę streścić poniższy raport w trzech krótkich zdaniach.",
    ),
    "vietnamese": (
        "Ủy ban đã hoãn quyết định cho đến khi nghe hết các nhân chứng.",
        "Bạn có thể giải thích quang hợp hoạt động như thế nào không?",
        "Cô ấy đi dọc theo bờ sông vì buổi tối ấm áp và yên tĩnh.",
        "Xin hãy tóm tắt báo cáo sau đây trong ba câu ngắn.",
    ),
    "russian": (
        "Комитет отложил решение до тех пор, пока не будут выслушаны все свидетели.",
        "Можешь ли ты простыми словами объяснить, как работает фотосинтез?",
        "Она шла вдоль реки, потому что вечер был тёплым и тихим.",
        "Пожалуйста, кратко изложите следующий отчёт в трёх предложениях.",
        "Процентные ставки снова выросли, что удивило большинство экономистов.",
    ),
    "greek": (
        "Η επιτροπή ανέβαλε την απόφασή της μέχρι να ακουστούν όλοι οι μάρτυρες.",
        "Μπορείς να εξηγήσεις με απλά λόγια πώς λειτουργεί η φωτοσύνθεση;",
        "Περπατούσε κατά μήκος του ποταμού γιατί το βράδυ ήταν ζεστό.",
    ),
    "arabic": (
        "أجلت اللجنة قرارها حتى يتم الاستماع إلى جميع الشهود.",
        "هل يمكنك أن تشرح لي كيف تعمل عملية البناء الضوئي؟",
        "مشت على طول النهر لأن المساء كان دافئا وهادئا.",
        "يرجى تلخيص التقرير التالي في ثلاث جمل قصيرة.",
    ),
    "hebrew": (
        "הוועדה דחתה את החלטתה עד שיישמעו כל העדים.",
        "האם תוכל להסביר במילים פשוטות כיצד פועלת הפוטוסינתזה?",
        "היא הלכה לאורך הנהר כי הערב היה חם ושקט.",
    ),
    "hindi": (
        "समिति ने सभी गवाहों को सुनने तक अपना निर्णय टाल दिया।",
        "क्या आप सरल शब्दों में समझा सकते हैं कि प्रकाश संश्लेषण कैसे काम करता है?",
        "वह नदी के किनारे चल रही थी क्योंकि शाम गर्म और शांत थी।",
        "कृपया निम्नलिखित रिपोर्ट को तीन छोटे वाक्यों में संक्षेप करें।",
    ),
    "thai": (
        "คณะกรรมการเลื่อนการตัดสินใจออกไปจนกว่าจะได้ฟังพยานทุกคน",
        "คุณช่วยอธิบายการสังเคราะห์ด้วยแสงด้วยคำง่าย ๆ ได้ไหม",
        "เธอเดินไปตามแม่น้ำเพราะตอนเย็นอากาศอบอุ่นและเงียบสงบ",
    ),
    "chinese": (
        "委员会推迟了决定，直到听取所有证人的陈述。",
        "你能用简单的话解释一下光合作用是怎么进行的吗？",
        "她沿着河边散步，因为那天晚上又暖和又安静。",
        "请用三句简短的话总结下面的报告。",
        "利率再次上升，这让大多数经济学家感到意外。",
    ),
    "japanese": (
        "委員会は、すべての証人の話を聞くまで決定を延期しました。",
        "光合成の仕組みを簡単な言葉で説明してもらえますか。",
        "夕方は暖かくて静かだったので、彼女は川沿いを歩きました。",
        "次の報告書を三つの短い文に要約してください。",
    ),
    "korean": (
        "위원회는 모든 증인의 말을 들을 때까지 결정을 미루었습니다.",
        "광합성이 어떻게 이루어지는지 쉬운 말로 설명해 주시겠어요?",
        "저녁이 따뜻하고 조용해서 그녀는 강을 따라 걸었습니다.",
        "다음 보고서를 짧은 세 문장으로 요약해 주세요.",
    ),
    "emoji": (
        "🎉🎉 happy birthday!! 🥳🎂 see you at 8 🍕🍻",
        "ok 👍 on my way 🚗💨 brb 😅😂",
        "love this ❤️🔥 so cute 🐶🐱✨",
    ),
}
_SYSTEM_PROMPTS: Final = (
    "You are a helpful assistant.",
    "You are a support agent of a bank. Be brief, be polite, and never give legal advice.",
)
_CODE_LINES_A_PIECE: Final = 6


@dataclass(frozen=True, slots=True)
class Chat:
    kind: str
    messages: Sequence[dict[str, str]]
    is_escaped: bool

    @property
    def json(self) -> bytes:
        """As it stands in a body."""
        return json.dumps(
            self.messages, ensure_ascii=self.is_escaped, separators=(",", ":")
        ).encode()


def kinds() -> Sequence[str]:
    return (*_SENTENCES, "python", "c", "numbers", "base64")


def chats(num: int, seed: int) -> Iterator[Chat]:
    """Kinds in turn, so that any run of them holds all."""
    source = random.Random(seed)
    pieces = {kind: _pieces(kind, source) for kind in kinds()}
    for index in range(num):
        kind = kinds()[index % len(kinds())]
        yield Chat(kind, _messages(pieces[kind], source), is_escaped=source.random() < 0.25)


def _messages(pieces: Sequence[str], source: random.Random) -> Sequence[dict[str, str]]:
    messages = []
    if source.random() < 0.5:
        messages.append({"role": "system", "content": source.choice(_SYSTEM_PROMPTS)})
    num_pieces = min(120, int(source.paretovariate(0.9)))  # most are short, some are long
    for turn in range(source.choice((1, 1, 1, 3, 5, 7))):
        text = " ".join(source.choice(pieces) for _ in range(num_pieces))
        messages.append({"role": "assistant" if turn % 2 else "user", "content": text})
    return messages


def _pieces(kind: str, source: random.Random) -> Sequence[str]:
    if kind in _SENTENCES:
        return _SENTENCES[kind]
    if kind == "numbers":
        return [
            "\n".join(f"{source.random() * 1e4:.2f},{source.randrange(10**6)}" for _ in range(4))
            for _ in range(50)
        ]
    if kind == "base64":
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        return ["".join(source.choices(alphabet, k=76)) for _ in range(50)]
    return _code(kind)


def _code(kind: str) -> Sequence[str]:
    """Of this repository."""
    root = Path(__file__).parents[1]
    paths = sorted(root.glob("gateway/*.py")) if kind == "python" else sorted(root.rglob("*.c"))
    lines = [line for path in paths for line in path.read_text().splitlines()]
    step = _CODE_LINES_A_PIECE
    return ["\n".join(lines[at : at + step]) for at in range(0, len(lines), step)]
