"""Texts in six languages, with a bar where a sentence ends."""

CASES = {
    "en": """
        We meet at 5 p.m. on Friday.|Bring your coat.
        The shop closes at 5 p.m.|The bank closes at noon.
        At 9 a.m. the train leaves.
        Eat fruit, e.g. a banana or an apple.
        Some animals, e.g. Siberian tigers, are rare.
        He is late, i.e. we wait.
        See Fig. 3 for details.|See also Figs. 4 and 5.
        See Vol. 3, p. 12, and pp. 30 to 40.
        I met Dr. Smith and Mrs. J. Doe yesterday.
        Prof. Brown and Mr. Green left.|Ms. White stayed.
        J. R. R. Tolkien wrote it.|C. S. Lewis read it.
        J.R.R. Tolkien wrote it.
        The U.S. president spoke.|He was brief.
        The U.S. Army came.
        My number is No. 5 today.|Yours is no. 7.
        The answer is no.|I am sorry.
        We sell apples, pears, etc. at low prices.
        We sell apples, pears, etc.|They sell fish.
        It costs approx. 5 dollars.
        It takes approx. two hours.
        St. John lived near St. Louis.
        On Jan. 5 it snowed.|On Dec. 24 it rained.
        She moved in 1990.|He moved in 1991.
        So do I.|It is late.
        Who is it?|It is me!|Come in.
        "Stop!" he said.|She stopped.
        "Why?" asked Tom.|"Because!" she said.
        Well... maybe not.
        Apple Inc. said no.|Acme Corp. said yes.
        John Smith Jr. was here.|So was Lt. Col. Jones.
        Smith et al. (2020) agree.|Others do not.
        It is Spain vs. Italy tonight.
        I watch TV.|You read.
        It costs 3.50.|That is cheap.
        (It was late.)|We went home.
        He said "Go."|She went.
        We live on Main St. and Second Ave. in town.
        Gen. Lee and Sgt. Pepper met Sen. Smith.
        we met at 5 p.m. on monday.|it was nice.
        i am here.|you are there.
        Wait...|What?|No!
        I love art.|It is old.|I like the sec. 5 rule.
        Really?!|Yes!!!|Good.
        """,
    "de": """
        Das kostet ca. 5 Euro.|Das ist billig.
        Ich sah Dr. Müller und Prof. Schmidt.|Sie grüßten.
        Er mag Obst, z. B. Äpfel und Birnen.
        Er mag Obst, z.B. Äpfel.
        Sie kommt heute, d. h. wir warten.
        Ich wohne im Haus Nr. 5.|Du wohnst in Nr. 7.
        Siehe Abb. 2 und S. 12.
        Äpfel, Birnen usw. sind gesund.|Brot auch.
        Herr bzw. Frau Meier kommt.
        Am 3. Mai beginnt der Kurs.|Er endet am 20. Juni.
        Der 2. Weltkrieg endete 1945.|Es war Mai.
        Ich mag es.|Du magst es auch.
        Das kostet 5 Mio. Euro, inkl. MwSt. und Versand.
        Er lebte im 3. Jh. v. Chr. in Rom.
        Fr. Weber und Hr. Wolf sind da.
        Siehe Kap. 3, Art. 5 Abs. 2 und Bd. 4.
        Er wohnt in der Hauptstr. 5 in Bonn.
        Vgl. Abb. 3.|Das ist evtl. Regen.
        Dipl.-Ing. Huber u. a. Leute kamen.
        Der sog. Experte kommt ggf. Montag.
        Komm!|Wo bist du?|Ich warte.
        „Halt!“, rief er.|Sie hielt an.
        Tel. 030 12345.|Ruf an!
        """,
    "fr": """
        M. Dupont est là.|Mme Dupont aussi.
        MM. Dupont et Durand arrivent.|Ils sont en retard.
        Voir p. 12 et fig. 3.|Voir aussi vol. 2.
        Des fruits, p. ex. des pommes, etc. sont bons.
        Le Dr. Martin et Mgr. Blanc parlent.
        Bonjour !|Ça va ?|Oui.
        C'est le 5 janv. 2020.|Il neige.
        En 50 av. J.-C. il mourut.
        «\u00a0Halte\u00a0!\u00a0» dit-il.|Il partit.
        Voir chap. 4, art. 2.
        """,
    "es": """
        El Sr. García y la Sra. López llegan.|Son puntuales.
        Compra fruta, p. ej. manzanas.
        Ud. es muy amable.|Uds. también.
        Los EE. UU. tienen 50 estados.
        ¿Qué pasa?|¡Nada!|Vale.
        Vea la pág. 12 y el núm. 3.
        El Dr. Pérez y Dña. Ana viven en la Av. Mayor.
        Cuesta aprox. 5 euros, etc. y más.
        —¿Vienes? —preguntó ella.|Él calló.
        """,
    "it": """
        Il Sig. Rossi e la Sig.ra Verdi arrivano.|Sono qui.
        Mele, pere, ecc. sono buone.|Il pane no.
        Il Dott. Bianchi e l'Ing. Neri parlano.
        Vedi pag. 12, fig. 3 e vol. 2.
        Ci sono città, ad es. Roma e Milano.
        Tu sei qui.|Lui no.
        La Fiat S.p.A. è a Torino.
        L'Avv. Russo abita in C. Verdi.
        """,
    "pt": """
        O Sr. Silva e a Sra. Costa chegam.|Estão bem.
        Frutas, p. ex. maçãs, são boas.
        O Dr. Santos e a Dra. Lima moram na Av. Paulista.
        Veja a pág. 12 e a fig. 3.
        No séc. 19 era assim.|Hoje não.
        Bom dia!|Tudo bem?|Sim.
        Maçãs, peras, etc. são boas.
        """,
    "zh": """
        你好。|你好吗？|我很好！
        他说：「好。」|我走了。
        """,
    "hi": """
        यह घर है।| वह नाव है।
        """,
    "ru": """
        Привет!|Как дела?|Я дома.
        «Стой!» — сказал он.|Она ушла.
        """,
    "several": """
        The meeting is at 10 a.m. sharp.|Please come.
        He earned his Ph.D. in 1999.|She earned hers later.
        I saw Mr. and Mrs. Brown.
        The plane (a Boeing 747) landed.|Nobody was hurt.
        "Where are you going?" she asked.|He didn't answer.
        Washington, D.C. is the capital.
        We stayed from Feb. 3 to Mar. 4.
        The company, Smith & Co., was sold.
        It weighs 3 lbs. and costs $5.|That is OK.
        Is it 5 p.m.?|Yes.
        Turn left at St. James St. and go on.
        Mt. Everest is high.|K2 is, too.
        He lives at 221B Baker St. in London.
        Gov. Brown signed it on Sept. 9.
        Item no. 3 is broken, see p. 4.
        Oh no!|I forgot.|Sorry...
        Hello.|My name is Ann.|What's yours?
        He said: "I am tired."|Then he left.
        This is version 2.0.|It is new.
        He was born in 1950.|His wife was born in 1952.
        See Sec. 4.|It explains this.
        I have two cats, i.e. Tom and Kim.
        Er kommt um 5 Uhr.|Sie kommt um 6.
        Er wohnt am St.-Anna-Platz 3.
        Wir haben z. Zt. keine Äpfel.
        Es sind ca. 20 km bis Bonn.
        Das war am 1. Januar 2000.|Es schneite.
        Heinrich VIII. war König.
        Hr. Schmidt (geb. 1950) ist da.
        Das ist die Nr. 1 in der Welt.
        Siehe §§ 3 ff. und 5.
        „Wo bist du?“|„Ich bin hier.“
        Vielen Dank!|Mit freundlichen Grüßen
        Max u. Moritz sind da.
        Il habite au n° 5, av. Foch.
        M. et Mme Petit sont là.
        Qui est-ce ?|C'est moi.
        L'art. 3 dit non.
        J.-P. Martin est ici.|Il chante.
        El Sr. D. Juan vive en c/ Mayor.
        ¿Cómo estás?|Estoy bien, gracias.
        Son las 5 p. m. en Madrid.
        Dott.ssa Rossi è qui.|Lei canta.
        Il prof. Bianchi insegna.
        Abito in via Roma n. 5.
        A Dra. Ana e o Eng. Paulo chegaram.
        São aprox. 5 km.|É longe.
        Ele nasceu em 5 jan. 1990.
        """,
}


def cases():
    """Yields the language, the text and its sentences."""
    for language, lines in CASES.items():
        for line in lines.strip("\n").split("\n"):
            sentences = line.strip().split("|")
            if sentences != [""]:
                space = "" if language in ("zh", "hi") else " "
                text = space.join(sentences)
                yield language, text, [sentence.strip() for sentence in sentences]
